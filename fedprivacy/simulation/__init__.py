"""Simulations on this machine: their preconditions, one run, many runs, questions, a profile."""
