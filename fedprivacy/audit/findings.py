"""Findings of an audit: gates that pass or fail, and lower bounds beside the accountant's upper one."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fedprivacy.accounting.views import View
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.numbers import finite_or_none
from fedprivacy.values.runs import AuditResult, Rows
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import count_text, epsilon_text, proved_text, unit_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check of what runs, which passes or fails.

    Attributes:
        name: short, as it is typed: `replay`.
        proves: in words, what holds if it passes.
        passed: whether it did.
        statistic: the number that decided, for example the largest change of a sum, in clipping norms.
        p_value: probability of so extreme a statistic if nothing is wrong; None: the check is exact.
        assumptions: conditions under which it proves that.
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

    @property
    def verdict(self) -> str:
        """The result in a word: passed or FAILED."""
        return "passed" if self.passed else "FAILED"

    @property
    def p_value_text(self) -> str:
        """The p-value for people."""
        return "exact" if self.p_value is None else f"{self.p_value:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """A privacy loss that an attack on what runs has shown, with a stated confidence.

    Attributes:
        name: of the attack, short: `per-step-gaussian`.
        epsilon: at least this much is lost, at `delta`, with probability `confidence`.
        delta: that of the upper bound beside it.
        confidence: for example 0.95.
        view: the attacker: the server, which sees each client's update, or anybody who has the final model.
        relation: the neighbours that the bound tells apart.
        assumptions: conditions under which it is a lower bound, and the gates that check them.
    """

    name: str
    epsilon: float
    delta: float
    confidence: float
    view: View
    relation: NeighbouringRelation
    assumptions: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Findings:
    """All that an audit found of one subject. As text, and in a notebook, it is tables of both, and what is wrong.

    Attributes:
        subject: what was audited, in words.
        seed: of what the auditor drew: with it, the same is asked again.
        gates: in the order in which they ran.
        lower_bounds: the same.
        epsilon_upper: what the accountant states for the training that was audited, at `delta`; infinite: no bound.
        unit: the unit of privacy that it is stated for.
    """

    subject: str
    seed: int
    gates: tuple[Gate, ...]
    lower_bounds: tuple[LowerBound, ...] = ()
    epsilon_upper: float = math.inf
    delta: float = 0.0
    unit: str = str(RECORD)

    @property
    def passed(self) -> bool:
        """Return whether every gate passed, and no attack showed a larger loss than the accountant states."""
        return not self.failed and not self.violated

    @property
    def failed(self) -> tuple[Gate, ...]:
        return tuple(gate for gate in self.gates if not gate.passed)

    @property
    def violated(self) -> tuple[LowerBound, ...]:
        """The lower bounds that are above the upper one: either is wrong, or the code is."""
        return tuple(bound for bound in self.lower_bounds if bound.epsilon > self.epsilon_upper)

    @property
    def strongest(self) -> LowerBound | None:
        """The largest lower bound; None: nothing was attacked."""
        return max(self.lower_bounds, key=lambda bound: bound.epsilon, default=None)

    @property
    def confidence(self) -> float:
        """Probability, at least, that all lower bounds hold together, by the union bound."""
        return 1.0 - sum(1.0 - bound.confidence for bound in self.lower_bounds)

    def in_words(self) -> str:
        """Return the result in a sentence."""
        if self.failed:
            names = ", ".join(gate.name for gate in self.failed)
            return f"FAILED: {len(self.failed)} of {count_text(len(self.gates), 'gate')} ({names})"
        if self.violated:
            return f"FAILED: {count_text(len(self.violated), 'attack')} showed a larger loss than is stated"
        passed = f"passed: {count_text(len(self.gates), 'gate')}"
        if self.strongest is None:
            return passed
        shown, stated = proved_text(self.strongest.epsilon), epsilon_text(self.epsilon_upper)
        return (
            f"{passed}; attacks showed at least epsilon {shown}, and at most {stated} is stated for all steps of these "
            f"settings{unit_text(self.unit)}"
        )

    def results(self, at: float) -> tuple[AuditResult, ...]:
        """The lower bounds as a run's dashboard shows them.

        Args:
            at: when they were found, in seconds since the epoch.
        """
        return tuple(
            AuditResult(
                at=at,
                attack=bound.name,
                client_id="",
                lower=bound.epsilon,
                confidence=bound.confidence,
                upper=self.epsilon_upper,
                delta=bound.delta,
                accountant="PLD",
                view=bound.view,
            )
            for bound in self.lower_bounds
        )

    def summary(self) -> dict[str, Any]:
        """Return what `fedprivacy audit --json` prints; numbers that are not finite are None."""
        return {
            "subject": self.subject,
            "seed": self.seed,
            "passed": self.passed,
            "gates": [asdict(gate) | {"statistic": finite_or_none(gate.statistic)} for gate in self.gates],
            "lower_bounds": {bound.name: asdict(bound) for bound in self.lower_bounds},
            "epsilon_upper": finite_or_none(self.epsilon_upper),
            "delta": self.delta,
            "unit": self.unit,
        }

    def __repr__(self) -> str:
        return f"<Findings of {self.subject}: {self.in_words()}>"

    def __str__(self) -> str:
        wrong = [f"{name}: {reason}" for name, reason in self._reasons()]
        parts = [f"Audit of {self.subject} {self.in_words()}.", "\n".join(wrong), *map(as_text, self._tables())]
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        wrong = [f"<li><b>{html.escape(name)}</b>: {html.escape(reason)}</li>" for name, reason in self._reasons()]
        told = f"<p><b>{html.escape(self.subject)}</b>: {html.escape(self.in_words())}</p>"
        tables = "".join(table._repr_html_() for table in self._tables())
        return told + (f"<ul>{''.join(wrong)}</ul>" if wrong else "") + tables

    def _reasons(self) -> list[tuple[str, str]]:
        """Return each reason after the name of its gate or attack."""
        failed = [(gate.name, reason) for gate in self.failed for reason in gate.reasons]
        upper = epsilon_text(self.epsilon_upper)
        return failed + [
            (bound.name, f"At least epsilon {proved_text(bound.epsilon)} is lost, and at most {upper} is stated.")
            for bound in self.violated
        ]

    def _tables(self) -> Iterator[Rows]:
        """The gates; and the bounds, if anything was attacked."""
        heads = "gate", "verdict", "p-value", "what holds if it passes"
        gates = ((gate.name, gate.verdict, gate.p_value_text, gate.proves) for gate in self.gates)
        yield Rows(dict(zip(heads, cells, strict=True)) for cells in gates)
        if self.lower_bounds:
            own, stated, upper = "epsilon at least", "stated at most", epsilon_text(self.epsilon_upper)
            yield Rows({"attack": b.name, own: proved_text(b.epsilon), stated: upper} for b in self.lower_bounds)


def as_text(table: Rows) -> str:
    """The table in columns.

    >>> print(as_text(Rows([{"gate": "noise", "verdict": "passed"}, {"gate": "invariance", "verdict": "passed"}])))
    gate        verdict
    noise       passed
    invariance  passed
    """
    lines = [*map(tuple, table[:1]), *(tuple(row.values()) for row in table)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
