"""Mechanisms: noise from a key that no server knows, on a public lattice, and what a release of it costs."""
