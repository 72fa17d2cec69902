"""What drives a simulation on this machine: one run, many runs, questions, a profile."""
