"""A guard's tally for people and for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedprivacy.accounting import more_runs
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.shortage import shortage
from fedprivacy.accounting.views import Epsilon, reading
from fedprivacy.guard.tally import ChargeEntry, CorrectionEntry, Tally
from fedprivacy.values.budget import Allowance
from fedprivacy.values.event_codec import as_fields, from_list
from fedprivacy.values.events import Event, PoissonSampledGaussian
from fedprivacy.values.nulls import finite_or_none, or_infinite, plain
from fedprivacy.values.wording import (
    budget_text,
    count_text,
    delta_text,
    epsilon_text,
    reading_text,
    words_of_what_is_left,
)

if TYPE_CHECKING:
    from fedprivacy.ledger.certificate import Certificate


def exported(entry: ChargeEntry | CorrectionEntry) -> dict[str, Any]:
    """One charge or correction as JSON types; `fedprivacy.values.event_codec.from_fields` reads its event."""
    fields = {"kind": "charge", **entry.attempt._asdict(), "steps": entry.steps, "event": as_fields(entry.event)}
    if isinstance(entry, CorrectionEntry):
        fields |= {"kind": "correction", "client_steps": entry.client_steps, "server_steps": entry.server_steps}
    return fields


def summary(tally: Tally) -> dict[str, Any]:
    """Everything as JSON types: an epsilon that is no finite number is null, and `notes` says why."""
    epsilon, note = _reading(tally)
    budget = plain(tally.allowance.budget) | {"filter": tally.allowance.filter} if tally.allowance else None
    value = epsilon.value if epsilon is not None and not note else None
    return {
        "entries": [exported(e) | {"sealed": _sealed(tally, e), "time": e.time} for e in tally.entries],
        "totals": [{"event": as_fields(event), "steps": steps} for event, steps in tally.history.items()],
        "epsilon": value,
        "view": epsilon.view.value if epsilon else None,
        "relation": epsilon.relation.value if epsilon else None,
        "unit": str(tally.unit) if epsilon else None,
        "accountant": epsilon.accountant if epsilon else None,
        "budget": budget,
        "runs_left": _runs_left(tally)[0],
        "notes": note,
    }


def as_page(tally: Tally) -> RenderableType:
    """Everything for a terminal."""
    if not tally.allowance:
        return Text("Nothing was charged.")
    epsilon, _ = _reading(tally)
    cost = Text(str(epsilon), style="bold")
    return Group(_entries(tally), _totals(tally), cost, Text(_budget_words(tally.allowance)), Text(_left_words(tally)))


@dataclass(frozen=True, slots=True)
class GuardComparison:
    """The histories of a guard and of a certificate, with their epsilons at the certificate's delta.

    `since` counts the steps of the guard that were charged after the certificate was issued, by this host's clock.
    """

    certificate: Certificate
    own: Counter[Event]
    certified: Counter[Event]
    epsilon: float
    since: int
    unit: str

    @classmethod
    def of(cls, tally: Tally, certificate: Certificate) -> GuardComparison:
        """Compare a guard's tally with a certificate that was verified."""
        since = sum(entry.steps for entry in tally.entries if entry.time > certificate.issued)
        epsilon = reading(tally.history, certificate.delta).value
        own, certified = Counter(tally.history), Counter(from_list(certificate.history))
        return cls(certificate, own, certified, epsilon, since, str(tally.unit))

    @property
    def more(self) -> int:
        """Number of steps that the guard holds and the certificate does not."""
        return (self.own - self.certified).total()

    @property
    def differs(self) -> bool:
        """True if the guard holds more, or the certificate is for another unit of privacy."""
        return bool(self.more or self.other_unit)

    @property
    def other_unit(self) -> str:
        """The units of privacy in words if they differ; empty: they do not, or one has promised nothing."""
        stated = self.certificate.unit
        if not self.own or not self.certified or stated == self.unit:
            return ""
        return f" Its unit of privacy is {stated}, and your guard's is {self.unit}: its epsilon means something else."

    @property
    def words(self) -> str:
        """The result in words."""
        return self._counted + self.other_unit

    @property
    def _counted(self) -> str:
        stated = epsilon_text(or_infinite(self.certificate.epsilon))
        own, fewer = f"epsilon {epsilon_text(self.epsilon)}", (self.certified - self.own).total()
        if self.more:
            words = f"Your guard holds {count_text(self.more, 'step')} more ({own}) than this certificate ({stated})"
            words += f", and {fewer} fewer of other mechanisms." if fewer else "."
            if self.since:
                newer = count_text(min(self.since, self.more), "step")
                words += f" {newer} of them came after it was issued: ask for a newer one."
            if self.since < self.more:
                words += " Send 'fedprivacy guard export' to the operator, who types 'fedprivacy ledger reconcile'."
            return words
        if fewer:
            held = f"This certificate holds {count_text(fewer, 'step')} more ({stated}) than your guard ({own})"
            return f"{held}: what was granted and not trained counts, too."
        return f"Your guard and this certificate hold the same: {count_text(self.own.total(), 'step')}, {own}."

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON types; an epsilon that is no finite number is null."""
        events = [
            {"event": as_fields(event), "guard": self.own[event], "certificate": self.certified[event]}
            for event in self._events
        ]
        stated = {n: getattr(self.certificate, n) for n in ("dataset_id", "issued", "delta", "epsilon", "unit")}
        guard = {"epsilon": finite_or_none(self.epsilon), "unit": self.unit, "more": self.more, "since": self.since}
        return {"certificate": stated, "guard": guard, "events": events, "words": self.words}

    def as_page(self) -> RenderableType:
        """Return the result for a terminal."""
        title = Text(f"{self.certificate.dataset_id}, certificate of {self.certificate.issued[:10]}")
        table = Table("mechanism of a step", box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
        for heading in ("guard", "certificate"):
            table.add_column(heading, justify="right")
        for event in self._events:
            table.add_row(str(event), str(self.own[event]), str(self.certified[event]))
        return Group(table, Text(self.words, style="bold"))

    @property
    def _events(self) -> list[Event]:
        return list(dict.fromkeys((*self.own, *self.certified)))


def _reading(tally: Tally) -> tuple[Epsilon | None, str]:
    """The cost of the history at the delta of the last budget, and a note where that is no finite number."""
    if not tally.allowance:
        return None, "nothing was charged, and no delta is recorded"
    epsilon = reading(tally.history, tally.allowance.budget.delta, unit=str(tally.unit))
    return epsilon, "" if epsilon.value < float("inf") else "no finite epsilon is known"


def _entries(tally: Tally) -> Table:
    """One row for each; an event is a number here, and its words stand once, in the totals."""
    numbers = {event: str(number) for number, event in enumerate(tally.history, start=1)}
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("run", overflow="fold")
    for heading in ("round", "attempt", "steps", "event"):
        table.add_column(heading, justify="right")
    for heading in ("sealed", "time (UTC)"):
        table.add_column(heading, no_wrap=True)
    for entry in tally.entries:
        run_id, round, attempt = entry.attempt
        sealed = "correction" if isinstance(entry, CorrectionEntry) else "yes" if _sealed(tally, entry) else "no"
        time = entry.time[:16].replace("T", " ")
        table.add_row(Text(run_id), str(round), str(attempt), str(entry.steps), numbers[entry.event], sealed, time)
    return table


def _totals(tally: Tally) -> Table:
    table = Table("event", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("steps in all", justify="right")
    table.add_column("one step")
    for number, (event, steps) in enumerate(tally.history.items(), start=1):
        table.add_row(str(number), str(steps), str(event))
    return table


def _runs_left(tally: Tally) -> tuple[int | None, int]:
    """Number of further runs, like the last that trained, within the last budget, and steps of one; None: unknown."""
    trained = _trained(tally)
    if not trained or not tally.allowance or not tally.allowance.budget.enforced:
        return None, 0
    last = trained[-1]
    alike = [c for c in trained if (c.attempt.run_id, c.event) == (last.attempt.run_id, last.event)]
    steps = sum(charge.steps for charge in alike)
    return more_runs(filter_of(tally.allowance), tally.history, last.event, steps), steps


def _left_words(tally: Tally) -> str:
    epsilon, _ = _reading(tally)
    budget = tally.allowance.budget.epsilon if tally.allowance else float("inf")
    left = budget - epsilon.value if epsilon else budget
    runs, steps = _runs_left(tally)
    words = words_of_what_is_left(left, runs, steps, charged=bool(tally.charges))
    why = ""
    if runs == 0 and tally.allowance and isinstance(event := _trained(tally)[-1].event, PoissonSampledGaussian):
        why = f" {shortage(filter_of(tally.allowance), tally.history, event, steps)}"
    return f"{words[0].upper()}{words[1:]}.{why}"


def _trained(tally: Tally) -> list[ChargeEntry]:
    return [charge for charge in tally.charges.values() if not charge.attempt.asks]


def _sealed(tally: Tally, entry: ChargeEntry | CorrectionEntry) -> bool:
    return isinstance(entry, ChargeEntry) and entry.attempt in tally.sealed


def _budget_words(allowance: Allowance) -> str:
    budget = allowance.budget
    if not budget.enforced:
        return f"No budget was set. {reading_text(budget.epsilon)}"
    allowed = f"epsilon {budget_text(budget.epsilon)} at delta {delta_text(budget.delta)}"
    return f"The budget was {allowed}, kept by the {allowance.filter} filter. {reading_text(budget.epsilon)}"
