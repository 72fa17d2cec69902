"""A guard's tally for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from fedprivacy._support.console import figure_columns, text_columns
from fedprivacy.accounting import more_runs
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.spend import shortage
from fedprivacy.accounting.views import Epsilon, reading
from fedprivacy.guard.tally import ChargeEntry, CorrectionEntry, Tally
from fedprivacy.values.budget import Allowance
from fedprivacy.values.events import UNNAMED, Claims, PoissonSampledGaussian, as_fields, from_fields, from_list
from fedprivacy.values.numbers import finite_or_none, or_infinite, plain
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


def entry_as_json(entry: ChargeEntry | CorrectionEntry) -> dict[str, Any]:
    """One charge or correction as JSON types; `fedprivacy.values.events.from_fields` reads its event."""
    fields = {"kind": "charge", **entry.attempt._asdict(), "steps": entry.steps, "event": as_fields(entry.event)}
    if isinstance(entry, CorrectionEntry):
        fields |= {"kind": "correction", "client_steps": entry.client_steps, "server_steps": entry.server_steps}
    return fields


def read_claims(file: Path) -> Claims:
    """Read what a client spent, from the lines that `entry_as_json` made.

    Raises:
        ValueError: a line was not written by a guard; the error names it.
        OSError: the file cannot be read.
    """
    claims: Counter[tuple[str, PoissonSampledGaussian]] = Counter()
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            fields = json.loads(line)
            runs = {"charge": fields["run_id"], "correction": UNNAMED}
            event = from_fields(fields["event"])
            if not isinstance(event, PoissonSampledGaussian):
                raise TypeError("the ledger holds Poisson-sampled Gaussians alone")
            claims[runs[fields["kind"]], event] += int(fields["steps"])
        except (ValueError, TypeError, KeyError) as problem:
            raise ValueError(f"line {number} of '{file}' was not written by 'fedprivacy guard export'.") from problem
    return dict(claims)


def summary(tally: Tally) -> dict[str, Any]:
    """Everything as JSON types: an epsilon that is no finite number is null, and `notes` says why."""
    epsilon, note = _reading(tally)
    budget = plain(tally.allowance.budget) | {"filter": tally.allowance.filter} if tally.allowance else None
    value = epsilon.value if epsilon is not None and not note else None
    return {
        "entries": [entry_as_json(e) | {"sealed": _is_sealed(tally, e), "time": e.time} for e in tally.entries],
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
    table = Table("event", *figure_columns("steps in all", wrapped=True), "one step", box=SIMPLE_HEAD, pad_edge=False)
    for number, (event, steps) in enumerate(tally.history.items(), start=1):
        table.add_row(str(number), str(steps), str(event))
    return Group(_entries(tally), table, cost, Text(_budget_words(tally.allowance)), Text(_left_words(tally)))


def compare_with_certificate(tally: Tally, certificate: Certificate) -> dict[str, Any]:
    """Compare a guard with a certificate that was verified, as JSON types: an epsilon that is no finite number is null.

    `more` and `fewer` count the steps that the guard, or the certificate, alone holds; `since` those of the guard
    that were charged after the certificate was issued, by this host's clock.
    """
    own, certified = Counter(tally.history), Counter(from_list(certificate.history))
    epsilon = reading(tally.history, certificate.delta).value
    facts = {
        "certificate": {n: getattr(certificate, n) for n in ("dataset_id", "issued", "delta", "epsilon", "unit")},
        "guard": {"epsilon": finite_or_none(epsilon), "unit": str(tally.unit)},
        "events": [
            {"event": as_fields(event), "guard": own[event], "certificate": certified[event]}
            for event in dict.fromkeys((*own, *certified))
        ],
        "more": (own - certified).total(),
        "fewer": (certified - own).total(),
        "since": sum(entry.steps for entry in tally.entries if entry.time > certificate.issued),
        "same_unit": not own or not certified or certificate.unit == str(tally.unit),
    }
    return facts | {"words": _compared_words(facts)}


def comparison_page(facts: Mapping[str, Any]) -> RenderableType:
    """Everything of a comparison for a terminal."""
    title = Text(f"{facts['certificate']['dataset_id']}, certificate of {facts['certificate']['issued'][:10]}")
    steps = figure_columns("guard", "certificate", wrapped=True)
    table = Table("mechanism of a step", *steps, box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for row in facts["events"]:
        table.add_row(str(from_fields(row["event"])), str(row["guard"]), str(row["certificate"]))
    return Group(table, Text(facts["words"], style="bold"))


def _compared_words(facts: Mapping[str, Any]) -> str:
    own, stated = (epsilon_text(or_infinite(facts[side]["epsilon"])) for side in ("guard", "certificate"))
    more, fewer, since = facts["more"], facts["fewer"], min(facts["since"], facts["more"])
    if more:
        words = f"Your guard holds {count_text(more, 'step')} more (epsilon {own}) than this certificate ({stated})"
        words += f", and {fewer} fewer of other mechanisms." if fewer else "."
        if since:
            words += f" {count_text(since, 'step')} of them came after it was issued: ask for a newer one."
        if since < more:
            words += " Send 'fedprivacy guard export' to the operator, who types 'fedprivacy ledger reconcile'."
    elif fewer:
        words = f"This certificate holds {count_text(fewer, 'step')} more (epsilon {stated}) than your guard ({own}): "
        words += "what was granted and not trained counts, too."
    else:
        words = f"Your guard and this certificate hold the same, epsilon {own}."
    if not facts["same_unit"]:
        unit, named = facts["guard"]["unit"], facts["certificate"]["unit"]
        words += f" Its unit of privacy is {named}, and your guard's is {unit}: its epsilon means something else."
    return words


def _reading(tally: Tally) -> tuple[Epsilon | None, str]:
    """The cost of the history at the delta of the last budget, and a note where that is no finite number."""
    if not tally.allowance:
        return None, "nothing was charged, and no delta is recorded"
    epsilon = reading(tally.history, tally.allowance.budget.delta, unit=str(tally.unit))
    return epsilon, "" if epsilon.value < float("inf") else "no finite epsilon is known"


def _entries(tally: Tally) -> Table:
    """One row for each; an event is a number here, and its words stand once, in the totals."""
    numbers = {event: str(number) for number, event in enumerate(tally.history, start=1)}
    ends = Column("sealed", no_wrap=True), Column("time (UTC)", no_wrap=True)
    columns = *text_columns("run"), *figure_columns("round", "attempt", "steps", "event", wrapped=True), *ends
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for entry in tally.entries:
        run_id, round, attempt = entry.attempt
        sealed = "correction" if isinstance(entry, CorrectionEntry) else "yes" if _is_sealed(tally, entry) else "no"
        time = entry.time[:16].replace("T", " ")
        table.add_row(Text(run_id), str(round), str(attempt), str(entry.steps), numbers[entry.event], sealed, time)
    return table


def _runs_left(tally: Tally) -> tuple[int | None, int]:
    """Number of further runs, like the last that trained, within the last budget, and steps of one; None: unknown."""
    trained = _training_charges(tally)
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
    if (
        runs == 0
        and tally.allowance
        and isinstance(event := _training_charges(tally)[-1].event, PoissonSampledGaussian)
    ):
        why = f" {shortage(filter_of(tally.allowance), tally.history, event, steps)}"
    return f"{words[0].upper()}{words[1:]}.{why}"


def _training_charges(tally: Tally) -> list[ChargeEntry]:
    return [charge for charge in tally.charges.values() if not charge.attempt.asks]


def _is_sealed(tally: Tally, entry: ChargeEntry | CorrectionEntry) -> bool:
    return isinstance(entry, ChargeEntry) and entry.attempt in tally.sealed


def _budget_words(allowance: Allowance) -> str:
    budget = allowance.budget
    if not budget.enforced:
        return f"No budget was set. {reading_text(budget.epsilon)}"
    allowed = f"epsilon {budget_text(budget.epsilon)} at delta {delta_text(budget.delta)}"
    return f"The budget was {allowed}, kept by the {allowance.filter} filter. {reading_text(budget.epsilon)}"
