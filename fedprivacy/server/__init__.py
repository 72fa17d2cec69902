"""The server of a run: the ServerApp, the recorder of its rounds, trackers, and the dashboard."""
