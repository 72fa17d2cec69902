"""Privacy budgets."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrivacyBudget:
    """The most that a data owner allows over all runs on a dataset: (epsilon, delta)-differential privacy.

    Attributes:
        epsilon: bound on the privacy loss, > 0 (infinite: measure, never stop).
        delta: probability with which the bound may fail, in (0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0.0:
            raise ValueError(f"epsilon is {self.epsilon}; choose a positive number.")
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta is {self.delta}; choose a probability in (0, 1), well below 1 / shard size.")

    @property
    def enforced(self) -> bool:
        """Whether the budget can ever be exhausted."""
        return math.isfinite(self.epsilon)
