"""Simulated clients: where they run, in this process or others, and how many of them train together."""
