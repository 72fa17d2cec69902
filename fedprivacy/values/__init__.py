"""What every part speaks of: events, budgets, rounds, series. Plain data, no engine."""
