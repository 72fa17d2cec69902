"""Cohorts: how the clients of a round are sampled from those that may be asked.

Formal guarantee: none. Whoever is asked is known to the server and spends what a round costs; see the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Protocol


class Cohort(Protocol):
    """Chooses clients by one uniform draw for each."""

    def chosen(self, drawn: Mapping[str, float]) -> set[str]:
        """Those of the clients that a round asks; `drawn` holds each one's number between 0 and 1."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """So many clients, or all where there are fewer: every set of that size is as likely as any other."""

    size: int

    def chosen(self, drawn: Mapping[str, float]) -> set[str]:
        """Those with the smallest draws."""
        return set(nsmallest(self.size, drawn, key=drawn.__getitem__))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each client with the same probability, independently: a round may ask many, or nobody."""

    rate: float

    def chosen(self, drawn: Mapping[str, float]) -> set[str]:
        """Those whose draw is below the rate."""
        return {client_id for client_id, number in drawn.items() if number < self.rate}


def _fixed(size: int, clients: int) -> Cohort:
    return FixedSize(size)


def _poisson(size: int, clients: int) -> Cohort:
    return Poisson(size / clients)


COHORTS = {"fixed": _fixed, "poisson": _poisson}
"""By name: a cohort from its (expected) size and the number of the run's clients."""
