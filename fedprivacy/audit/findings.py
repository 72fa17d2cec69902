"""What an audit finds: gates that pass or fail, and lower bounds beside the accountant's upper one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedprivacy.values.events import NeighbouringRelation


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check of what runs, which passes or fails.

    Attributes:
        name: short, as it is typed: `replay`.
        proves: in words, what holds if it passes.
        passed: whether it did.
        statistic: the number that decided, for example the largest change of a sum, in clipping norms.
        p_value: how likely so extreme a statistic is where nothing is wrong; None: the check is exact.
        assumptions: under which it proves that.
        reasons: what is wrong, one sentence each, in words of the people whose records these are; empty if it passed.
    """

    name: str
    proves: str
    passed: bool
    statistic: float
    p_value: float | None
    assumptions: str
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.passed == bool(self.reasons):
            raise ValueError(f"The gate {self.name} must give reasons if it fails, and none if it passes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """A privacy loss that an attack on what runs has shown, with a stated confidence.

    Attributes:
        name: of the attack, short: `per-step-gaussian`.
        epsilon: at least this much is lost, at `delta`, with probability `confidence`.
        delta: that of the upper bound beside it.
        confidence: for example 0.95.
        view: who attacks: the server, who sees each client's update; or whoever has the final model.
        relation: the neighbours that the bound tells apart.
        assumptions: under which it is a lower bound, and which gate checks them.
    """

    name: str
    epsilon: float
    delta: float
    confidence: float
    view: str
    relation: NeighbouringRelation
    assumptions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that an audit found of one subject.

    Attributes:
        subject: what was audited, in words.
        gates: in the order in which they ran.
        lower_bounds: the same.
        epsilon_upper: what the accountant states for the training that was audited, at `delta`; infinite: no bound.
    """

    subject: str
    gates: tuple[Gate, ...]
    lower_bounds: tuple[LowerBound, ...] = field(default=())
    epsilon_upper: float = math.inf
    delta: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every gate passed, and no attack showed a larger loss than the accountant states."""
        return all(gate.passed for gate in self.gates) and not self.violated

    @property
    def violated(self) -> tuple[LowerBound, ...]:
        """The lower bounds that are above the upper one: either is wrong, or the code is."""
        return tuple(bound for bound in self.lower_bounds if bound.epsilon > self.epsilon_upper)
