"""A run: its configuration and plan, its accountant, its folder, its report, the store of many runs."""
