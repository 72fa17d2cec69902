"""The answer of `fedprivacy risk`: whose risk it is, in a terminal, as JSON and as a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedprivacy._support.console import figure_columns
from fedprivacy.accounting.histories import ROWS, person_history
from fedprivacy.accounting.risk import PRIORS, RATES, Risk
from fedprivacy.commands.calculator.answers import facts_table, meaning, training_lines
from fedprivacy.commands.calculator.trainings import AskingError, TrainingSteps
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.ledger.certificate import Certificate
from fedprivacy.ledger.charges import NOTHING_SPENT
from fedprivacy.ledger.errors import no_dataset
from fedprivacy.runs.records.folder import read_history
from fedprivacy.values.events import History, NeighbouringRelation, from_list
from fedprivacy.values.numbers import finite_or_none, or_infinite
from fedprivacy.values.spent import FOR_WHOM
from fedprivacy.values.unit import RECORD, Unit
from fedprivacy.values.wording import (
    at_most_text,
    budget_text,
    count_text,
    delta_text,
    epsilon_text,
    plural,
    share_text,
)

_FORMATS = (".svg", ".png", ".html", ".json")

_MOST_ROWS = 50


class Person(NamedTuple):
    """The person whom an attacker looks for: the number of records at each of so many clients."""

    rows: int
    clients: int


_ONE = Person(1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRisk:
    """One answer.

    Attributes:
        risk: the risk of one unit, or of a person with several records.
        name: dataset, client of a run, or other title; empty: none.
        unit: what a guess is about.
        person: the person whom the risk is of; one record at one client: one unit.
        history: what was executed on one unit; empty: it is not known, or nothing was.
        relation: neighbouring relation; None: it is not known.
        budget: epsilon of the budget behind what was charged, maybe infinite; None: nothing was charged.
        persons: risks of persons by their number of records; empty: not told apart.
    """

    risk: Risk
    name: str = ""
    unit: Unit = RECORD
    person: Person = _ONE
    history: History = field(default_factory=dict)
    relation: NeighbouringRelation | None = None
    budget: float | None = None
    persons: Mapping[int, Risk] = field(default_factory=dict)


def risk_of_run(folder: Path, person: Person) -> list[StatedRisk]:
    """The risk of a unit at the client of a run that has spent most; and of each client as a whole, if it is protected.

    Raises:
        ValueError: the folder holds no run, or one without privacy.
    """
    history = read_history(folder)
    last, subjects = history.last, []
    if history.facts.private and last.spent:
        worst = history.worst
        name = f"{worst.client_id}, which has spent most of {folder}"
        if last.most_charged:
            unit = Unit.of(history.unit)
            _refuse_rows(person, unit)
            facts: dict[str, Any] = {"name": name, "unit": unit, "budget": worst.budget_epsilon}
            subjects.append(risk_after(last.most_charged, worst.delta, person, **facts))
        else:  # written by an earlier version
            subjects.append(StatedRisk(risk=Risk.of_budget(worst.epsilon, worst.delta), name=name))
    if last.user_level:
        risk = Risk.of_budget(last.user_level.epsilon, last.user_level.delta)
        subjects.append(StatedRisk(risk=risk, name=f"Each client as a whole, {FOR_WHOM}", unit=Unit("client")))
    if not subjects:
        raise AskingError(f"run is '{folder}', which has no privacy: nothing bounds what an attacker finds.")
    return subjects


def risk_of_ledger(ledger: Ledger, dataset: str, person: Person) -> list[StatedRisk]:
    """The risk of every dataset of a ledger, by what it was charged over all runs; of one, that of persons, too.

    Raises:
        LedgerError: there is no such dataset, or none at all.
        ValueError: a number is out of range, or a person's records are one unit in a dataset.
    """
    ids = [dataset] if dataset else ledger.dataset_ids()
    allowances, accounts, units = ledger.allowances(ids), ledger.accounts(ids), ledger.units(ids)
    if dataset not in {"", *allowances}:
        raise no_dataset(ledger.name, dataset, ledger.dataset_ids())
    if not ids:
        raise LedgerError(f"ledger {ledger.name} has no dataset yet.")
    person_history({}, *person)  # a wrong number of records is no dataset's fault
    found = []
    for each in ids:
        history, budget = accounts.get(each, NOTHING_SPENT).history, allowances[each].budget
        unit = Unit.of(units.get(each, str(RECORD)))
        _refuse_rows(person, unit)
        facts: dict[str, Any] = {"name": each, "unit": unit, "budget": budget.epsilon}
        try:
            found.append(risk_after(history, budget.delta, person, **facts, told_apart=len(ids) == 1))
        except ValueError:  # mechanisms that no theorem composes: one such dataset must not hide all others
            found.append(StatedRisk(risk=Risk.of_budget(math.inf, budget.delta), **facts))
    return found


def risk_of_certificate(certificate: Certificate) -> StatedRisk:
    """The risk of one unit of a certified dataset, by what it was charged over all runs; without a bound, infinite."""
    history, unit = from_list(certificate.history), Unit.of(certificate.unit or str(RECORD))
    facts: dict[str, Any] = {"name": certificate.dataset_id, "unit": unit, "budget": or_infinite(certificate.budget)}
    try:
        return risk_after(history, certificate.delta, _ONE, **facts)
    except ValueError:  # mechanisms that no theorem composes
        return StatedRisk(risk=Risk.of_budget(math.inf, certificate.delta), **facts)


def _refuse_rows(person: Person, unit: Unit) -> None:
    if person.rows > 1 and unit.rows > 1:
        raise AskingError(f"rows-per-person is {person.rows}, and one {unit} is protected as it is; leave it out.")


def risk_after(history: History, delta: float, person: Person, *, told_apart: bool = True, **facts: Any) -> StatedRisk:
    """The risk after `history`; if they are told apart, with that of persons with several records.

    Raises:
        ValueError: something is out of range, or the history cannot be composed.
    """
    several = told_apart and person == _ONE and facts.get("unit", RECORD).rows == 1 and bool(history)
    return StatedRisk(
        risk=_risk(history, delta, person),
        person=person,
        history=history,
        relation=next((event.relation for event in history), None),
        persons={rows: _risk(history, delta, Person(rows, 1)) for rows in ROWS} if several else {},
        **facts,
    )


def _risk(history: History, delta: float, person: Person) -> Risk:
    return Risk.of_history(person_history(history, *person), delta)


def as_fields(subject: StatedRisk) -> dict[str, Any]:
    """An answer as JSON types; an epsilon without a bound is null."""
    risk = subject.risk
    return {
        "name": subject.name,
        "epsilon": finite_or_none(risk.epsilon),
        "delta": risk.delta,
        "from": "trade-off curve" if risk.whole else "epsilon and delta",
        "unit": str(subject.unit),
        "relation": subject.relation,
        "rows_per_person": subject.person.rows,
        "clients_per_person": subject.person.clients,
        "advantage": risk.advantage,
        "tests": _tests(risk),
        "persons": [
            {"rows": rows, "epsilon": finite_or_none(each.epsilon), "advantage": each.advantage, "tests": _tests(each)}
            for rows, each in subject.persons.items()
        ],
    }


def _tests(risk: Risk) -> list[dict[str, Any]]:
    return [
        {
            "accused_wrongly": rate,
            "found": float(risk.found(rate)),
            "right": [{"used": prior, "right": risk.right(rate, prior)} for prior in PRIORS],
        }
        for rate in RATES
    ]


def page(subjects: Sequence[StatedRisk], *, listed: bool) -> Group:
    """Everything for a terminal: each answer on its own, or all in one table."""
    if listed:
        return Group(_dataset_table(subjects), Text(f"\n{subjects[0].risk.basis}"))
    parts: list[RenderableType] = []
    for subject in subjects:
        parts += [*([Text()] if parts else []), *_parts(subject)]
    return Group(*parts)


def _parts(subject: StatedRisk) -> list[RenderableType]:
    risk = subject.risk
    parts: list[RenderableType] = [Text(subject.name, style="bold", overflow="fold")] if subject.name else []
    parts.append(Text(f"epsilon {epsilon_text(risk.epsilon)} at delta {delta_text(risk.delta)}", style="bold"))
    facts = [("charged", line) for line in training_lines([TrainingSteps(*item) for item in subject.history.items()])]
    if subject.relation:
        of = subject.relation, *subject.person, str(subject.unit)
        parts.append(facts_table([*facts, *meaning(*of)]))
    parts += [_test_table(risk), *(Text(f"{line}\n") for line in sentences(subject))]
    return [*parts, *([_person_table(subject)] if subject.persons else [])]


def sentences(subject: StatedRisk) -> list[str]:
    """The answer in words, for people."""
    risk, unit = subject.risk, subject.unit.name if subject.person == _ONE else "person"
    right = at_most_text((1.0 + risk.advantage) / 2.0)
    lines = [
        risk.sentence(unit=unit),
        f"If half of all {plural(unit)} in question were used, at most {right} of all answers are right; guessing is "
        "right in 50\N{NO-BREAK SPACE}%.",
        risk.basis,
    ]
    if risk.whole:
        lines[-1] += f" Epsilon and delta alone would allow {_found_text(Risk.of_budget(risk.epsilon, risk.delta))}."
    if subject.budget is not None and subject.person == _ONE:
        promised = "no budget was promised."
        if math.isfinite(subject.budget):
            found = _found_text(Risk.of_budget(subject.budget, risk.delta))
            of = f"the budget of {budget_text(subject.budget)}"
            promised = f"promised beforehand is {of}, by which they find at most {found}."
        lines.append(f"Like epsilon, it is an odometer's reading; {promised}")
    return lines


def _found_text(risk: Risk) -> str:
    return at_most_text(float(risk.found(RATES[1])))


def _test_table(risk: Risk) -> Table:
    right = [f"accusations right\nif {share_text(prior)} were used" for prior in PRIORS]
    table = _table("At most, whatever is computed", "accused\nwrongly", "\nfound", *right)
    for rate in RATES:
        true = (at_most_text(risk.right(rate, prior)) for prior in PRIORS)
        table.add_row(share_text(rate), at_most_text(float(risk.found(rate))), *true)
    return table


def _person_table(subject: StatedRisk) -> Table:
    table = _table("Found at most, of persons with several records", "records", "epsilon", *_found_headings())
    for rows, risk in subject.persons.items():
        table.add_row(str(rows), epsilon_text(risk.epsilon), *map(at_most_text, risk.found(RATES).tolist()))
    return table


def _dataset_table(subjects: Sequence[StatedRisk]) -> Table:
    more = len(subjects) - _MOST_ROWS
    table = _table("Found at most, of each dataset, over all runs", "dataset", "epsilon", *_found_headings())
    table.columns[0].justify, table.columns[0].overflow = "left", "fold"
    table.caption = f"And {count_text(more, 'dataset')} more: --json shows all." if more > 0 else None
    for subject in subjects[:_MOST_ROWS]:
        found = map(at_most_text, subject.risk.found(RATES).tolist())
        table.add_row(Text(subject.name), epsilon_text(subject.risk.epsilon), *found)
    return table


def _found_headings() -> list[str]:
    return [f"{share_text(rate)} accused\nwrongly" for rate in RATES]


def _table(title: str, *headings: str) -> Table:
    columns = figure_columns(*headings, wrapped=True)
    return Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def draw(subjects: Sequence[StatedRisk], path: Path, *, listed: bool) -> None:
    """Draw the trade-off curve of the first answer into a file.

    Raises:
        AskingError: several datasets are asked about, or the file's name tells no form of a figure, or it cannot be
            written.
    """
    from fedprivacy.figures import style
    from fedprivacy.runs.records.report import risk_figure

    if path.suffix not in _FORMATS:
        raise AskingError(f"figure is '{path}'; choose a name that ends in one of {', '.join(_FORMATS)}.")
    if listed:
        raise AskingError("figure is of one dataset; name it with --dataset.")
    chart = risk_figure(subjects[0].risk, subjects[0].unit.name)
    try:
        match path.suffix:
            case ".svg":
                path.write_text(style.for_both_themes(style.to_svg(chart)), encoding="utf-8")
            case ".png":
                style.save_png(chart, path)
            case ".html":
                path.write_text(chart.to_html(inline=True), encoding="utf-8")
            case _:
                path.write_text(json.dumps(style.spec_of(chart), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise AskingError(f"figure is '{path}', which cannot be written ({error.strerror}); choose another.") from error
