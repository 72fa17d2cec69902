"""Plans: the public numbers of a run before it is run, and the noise that its budgets need."""
