"""Messages between server and clients: typed, versioned, strictly parsed."""
