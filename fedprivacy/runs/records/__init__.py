"""Records of a run: its folder, the store of many runs, and the readers of both."""
