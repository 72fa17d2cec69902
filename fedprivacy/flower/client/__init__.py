"""The client's side of a round: grant, guard, training, release."""
