"""Values that every part shares: events, budgets, rounds, series. Plain data, no engine."""
