"""The server of a run: the ServerApp and the recorder of its rounds."""
