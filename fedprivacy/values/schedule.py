"""What each round of a run is charged, in local steps: those that train, and in some rounds one that evaluates."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Rounds = TypeVar("Rounds", int, NDArray[np.int64])


class Schedule(NamedTuple):
    """How many steps a client takes that joins every round."""

    local_steps: int  # of training, in each round
    local_evaluation: int  # every so many rounds one step more evaluates; 0: never

    def evaluates(self, round: int) -> bool:
        """Whether clients evaluate the global model in a round."""
        return bool(self.local_evaluation) and round % self.local_evaluation == 0

    def steps_in(self, round: int) -> int:
        """What a round is charged."""
        return self.local_steps + self.evaluates(round)

    def steps_until(self, rounds: Rounds) -> Rounds:
        """What so many rounds are charged, the first ones; of an array, for each."""
        steps = rounds * self.local_steps
        return steps + rounds // self.local_evaluation if self.local_evaluation else steps

    def rounds_within(self, steps: int) -> int:
        """How many rounds so many steps pay for, whole ones."""
        if not self.local_evaluation:
            return steps // self.local_steps
        turns, rest = divmod(steps, self.steps_until(self.local_evaluation))  # each ends with a round that evaluates
        return turns * self.local_evaluation + min(rest // self.local_steps, self.local_evaluation - 1)
