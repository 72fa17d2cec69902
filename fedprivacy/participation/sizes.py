"""Cohorts: how the clients of a round are sampled from those that may be asked.

Formal guarantee: none. Whoever is asked is known to the server and spends what a round costs; see the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Cohort(Protocol):
    """Chooses clients by one uniform draw for each."""

    def chosen(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Those of the clients that a round asks, by each one's number between 0 and 1, shape [clients]."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """So many clients, or all where there are fewer: every set of that size is as likely as any other."""

    size: int

    def chosen(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Those with the smallest numbers."""
        if len(client_ids) <= self.size:
            return set(client_ids)
        return {client_ids[n] for n in np.argpartition(drawn, self.size)[: self.size].tolist()}


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each client with the same probability, independently: a round may ask many, or nobody."""

    rate: float

    def chosen(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Those whose number is below the rate."""
        return {client_ids[n] for n in np.flatnonzero(drawn < self.rate).tolist()}


def _fixed(size: int, clients: int) -> Cohort:
    return FixedSize(size)


def _poisson(size: int, clients: int) -> Cohort:
    return Poisson(size / clients)


COHORTS = {"fixed": _fixed, "poisson": _poisson}
"""By name: a cohort from its (expected) size and the number of the run's clients."""
