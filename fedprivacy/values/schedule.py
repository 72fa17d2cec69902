"""Local steps charged in each round of a run: those that train, and in some rounds one that evaluates."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Rounds = TypeVar("Rounds", int, NDArray[np.int64])


class Schedule(NamedTuple):
    """Number of steps of a client that joins every round."""

    local_steps: int  # training steps in each round
    local_evaluation: int  # interval, in rounds, of an additional step that evaluates; 0: never

    def evaluates(self, round: int) -> bool:
        """Return whether clients evaluate the global model in a round."""
        return bool(self.local_evaluation) and round % self.local_evaluation == 0

    def steps_in(self, round: int) -> int:
        """Number of steps charged in a round."""
        return self.local_steps + self.evaluates(round)

    def steps_until(self, rounds: Rounds) -> Rounds:
        """Number of steps charged in the first `rounds` rounds; for an array, elementwise."""
        steps = rounds * self.local_steps
        return steps + rounds // self.local_evaluation if self.local_evaluation else steps

    def rounds_within(self, steps: int) -> int:
        """Number of whole rounds that so many steps pay for."""
        if not self.local_evaluation:
            return steps // self.local_steps
        turns, rest = divmod(steps, self.steps_until(self.local_evaluation))  # each ends with a round that evaluates
        return turns * self.local_evaluation + min(rest // self.local_steps, self.local_evaluation - 1)
