"""Settings of a run: groups of them, the configuration that they make up, and the ways to give it."""
