"""Simulations on this machine: one run, many runs, questions, a profile."""
