"""Which models and losses have a sound private gradient: what is wrong with one, and how to mend it."""
