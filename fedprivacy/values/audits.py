"""What an attack on a run found, beside what its accountant states."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Whether a lower bound leaves room for the upper one."""

    CONSISTENT = "consistent"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A lower bound on a privacy loss, found by attack, and the upper bound of the accountant."""

    at: float  # when, in seconds since the epoch
    attack: str  # its name
    client_id: str  # whose loss; empty: of the run as a whole
    lower: float  # epsilon that the attack proved, with probability `confidence`
    confidence: float  # of the lower bound, for example 0.95
    upper: float  # epsilon that the accountant states, maybe infinite
    delta: float  # of both
    accountant: str  # that the upper bound is from
    view: str  # whose eyes both bounds are for

    @property
    def verdict(self) -> Verdict:
        """Violated: the attack proved a larger loss than the accountant allows. Either is wrong, or the code is."""
        return Verdict.CONSISTENT if self.lower <= self.upper else Verdict.VIOLATED
