"""What crosses between server and clients: typed, versioned, strictly parsed."""
