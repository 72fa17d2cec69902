"""The pages of the calculator: in a terminal, and as JSON.

Every epsilon stands with its delta, accountant and relation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, Decimal
from itertools import pairwise
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from fedprivacy._support.console import figure_columns
from fedprivacy.commands.calculator.costs import PLD, Accountant, Cost, Noise, Spent, Worth
from fedprivacy.commands.calculator.trainings import TrainingSteps, described, steps_text
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import budget_text, count_text, delta_text, epsilon_text

_PROTECTS = {
    NeighbouringRelation.ADD_OR_REMOVE_ONE: "whether {one} is there",
    NeighbouringRelation.ZERO_OUT: "{one} against nothing instead; how many records there are is public",
    NeighbouringRelation.REPLACE_ONE: "{one} against any other; how many records there are is public",
}
_WORTH = {
    Worth.GUARANTEE: "a guarantee: the true epsilon is at most this",
    Worth.BOUND: "a bound: the true epsilon is at most this, maybe far less",
    Worth.APPROXIMATION: "an approximation and no bound: the true epsilon may be larger",
}
_COLOURS = {Worth.GUARANTEE: "green", Worth.BOUND: "default", Worth.APPROXIMATION: "yellow"}
_SHOWN_TRAININGS = 6
_NOISE_DIGITS = 5


def spent_json(spent: Spent) -> dict[str, Any]:
    """Everything as JSON types: an epsilon that is no finite number is null, and `notes` says why."""
    epsilons = {c.accountant.name: None if c.note else c.epsilon for c in spent.costs}
    notes = {c.accountant.name: c.note for c in spent.costs if c.note}
    return {
        "epsilon": epsilons,
        "delta": spent.delta,
        "relation": spent.relation.value,
        "rows_per_person": spent.rows,
        "clients_per_person": spent.clients,
        "notes": notes,
    }


def noise_json(noise: Noise) -> dict[str, Any]:
    """Everything as JSON types."""
    event = noise.event
    return {
        "noise_multiplier": event.noise_multiplier,
        "epsilon": noise.epsilon,
        "delta": noise.budget.delta,
        "relation": event.relation.value,
    }


def spent_page(spent: Spent) -> Group:
    """Everything for a terminal."""
    first = spent.costs[0]
    facts = [("training", line) for line in training_lines(spent.trainings)]
    facts += meaning(spent.relation, spent.rows, spent.clients)
    facts.append(_accountant_fact(first.accountant))
    parts: list[RenderableType] = [_headline(first, spent.delta), facts_table(facts)]
    if len(spent.costs) > 1:
        parts.append(_table(spent.costs))
    return Group(*parts)


def noise_page(noise: Noise) -> Group:
    """Everything for a terminal."""
    event, budget = noise.event, noise.budget
    spends = f"epsilon {epsilon_text(noise.epsilon, budget.epsilon)} of {budget_text(budget.epsilon)}"
    facts = [("spends", f"{spends} at delta {delta_text(budget.delta)}")]
    if noise.past:
        past = epsilon_text(noise.past_epsilon)
        facts.append(("past", f"{noise.past}, which alone spent epsilon {past}"))
    facts.append(("training", f"{steps_text(noise.steps)} at sampling rate {budget_text(event.sampling_rate)}"))
    facts += [*meaning(event.relation), _accountant_fact(PLD)]
    headline = Text(f"noise multiplier {noise_text(event.noise_multiplier)}", style="bold")
    return Group(headline, facts_table(facts))


def noise_text(noise_multiplier: float) -> str:
    """A noise multiplier for people: never rounded down.

    >>> noise_text(0.9612341)
    '0.96124'
    """
    exact = Decimal(repr(noise_multiplier))
    last_digit = exact.adjusted() + 1 - _NOISE_DIGITS
    return f"{exact.quantize(Decimal(1).scaleb(last_digit), ROUND_CEILING):f}"


def _headline(first: Cost, delta: float) -> Text:
    at = f"at delta {delta_text(delta)}"
    if first.epsilon is None or math.isinf(first.epsilon):
        return Text(f"no finite epsilon {at}", style="bold red")
    about = "about " if first.accountant.worth is Worth.APPROXIMATION else ""
    return Text(f"epsilon {about}{epsilon_text(first.epsilon)} {at}", style="bold")


def meaning(
    relation: NeighbouringRelation, rows: int = 1, clients: int = 1, unit: str = str(RECORD)
) -> list[tuple[str, str]]:
    """The protected fact and the observer, a name and words each."""
    one = f"one {unit}" if rows == clients == 1 else f"a person with {count_text(rows, unit)}"
    if clients > 1:
        one += f" at each of {clients} clients"
    return [
        ("seen by", "the server, which sees the noisy result of every step"),
        ("protects", f"{_PROTECTS[relation].format(one=one)} ({relation} relation)"),
    ]


def _accountant_fact(accountant: Accountant) -> tuple[str, str]:
    return "accountant", f"{accountant.title}, {_WORTH[accountant.worth]}"


def training_lines(trainings: Sequence[TrainingSteps]) -> Iterator[str]:
    """The trainings, a line each; of many the first."""
    for training in trainings[:_SHOWN_TRAININGS]:
        yield described(training)
    if len(trainings) > _SHOWN_TRAININGS:
        yield f"and {len(trainings) - _SHOWN_TRAININGS} more"
    if not trainings:
        yield "none"


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Two columns; a name is not repeated below itself."""
    grid = Table.grid(Column(style="dim", no_wrap=True), padding=(0, 2))
    for (above, _), (name, words) in pairwise([("", ""), *facts]):
        grid.add_row("" if name == above else name, Text(words))
    return grid


def _table(costs: Sequence[Cost]) -> Table:
    table = Table("accountant", *figure_columns("epsilon", wrapped=True), "what it is", box=SIMPLE_HEAD, pad_edge=False)
    for cost in costs:
        accountant = cost.accountant
        if cost.epsilon is None:
            table.add_row(accountant.title, "-", "does not apply to these mechanisms")
            continue
        worth = f"[{_COLOURS[accountant.worth]}]{accountant.worth}[/]: {escape(accountant.words)}"
        table.add_row(accountant.title, epsilon_text(cost.epsilon), worth)
    return table
