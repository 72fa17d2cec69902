"""What a client has spent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSpent:
    """One client's privacy loss so far, seen by the server, over all runs on its shard.

    Attributes:
        client_id: the client.
        epsilon: composed privacy loss at `delta`, by PLD: an odometer's reading, no budget.
        delta: delta of the client's budget.
        budget_epsilon: the budget; infinite if the run only measures.
        rounds: rounds charged.
        steps: local steps charged.
        steps_left: steps of the run that the budget still allows.
        sampling_rate: q of the run's local steps.
    """

    client_id: str
    epsilon: float
    delta: float
    budget_epsilon: float
    rounds: int
    steps: int
    steps_left: int
    sampling_rate: float

    @property
    def exhausted(self) -> bool:
        """Whether not one more step is allowed."""
        return self.steps_left == 0
