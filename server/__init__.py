"""What a server runs."""
