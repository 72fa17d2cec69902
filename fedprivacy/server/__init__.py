"""The server of a run: the ServerApp, the recorder of its rounds, and the dashboard."""
