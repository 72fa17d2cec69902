"""Cohorts: rules that sample the clients of a round from those that may be asked.

Formal guarantee: none. The server knows the clients that are asked, and each spends the cost of a round; see the
    package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Cohort(Protocol):
    """Rule that chooses clients by one uniform draw for each."""

    def chosen(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Return the clients that a round asks, given a number between 0 and 1 for each, shape [clients]."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """A fixed number of clients, or all if there are fewer: every set of that size is equally likely."""

    size: int

    def chosen(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Return the clients with the smallest numbers."""
        if len(client_ids) <= self.size:
            return set(client_ids)
        return {client_ids[n] for n in np.argpartition(drawn, self.size)[: self.size].tolist()}


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each client with the same probability, independently: a round may ask many, or nobody."""

    rate: float

    def chosen(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Return the clients whose number is below the rate."""
        return {client_ids[n] for n in np.flatnonzero(drawn < self.rate).tolist()}


COHORTS: dict[str, Callable[[int, int], Cohort]] = {
    "fixed": lambda size, clients: FixedSize(size),
    "poisson": lambda size, clients: Poisson(size / clients),
}
"""Factories of cohorts by name: (expected size, number of the run's clients) -> cohort."""
