"""The answers of the calculator: computed, in a terminal, and as JSON.

They are what accountants say of a training, what their numbers are worth, and the least noise. In a terminal every
epsilon stands with its delta, accountant and relation.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from itertools import pairwise
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from fedprivacy._support.console import figure_columns
from fedprivacy.accounting import composition, gdp, noise_multiplier, pld, rdp
from fedprivacy.accounting.histories import extend_history
from fedprivacy.commands.calculator.trainings import (
    TrainingSteps,
    check_steps,
    history_of,
    read,
    relation_of,
    steps_text,
    training_text,
)
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import budget_text, count_text, delta_text, epsilon_text


class Worth(enum.StrEnum):
    """The relation of an accountant's number to the true epsilon.

    `GUARANTEE`: it is at most this, computed with every rounding error counted. `BOUND`: it is at most this, by a
    theorem. `APPROXIMATION`: it is about this, and may be larger.
    """

    GUARANTEE = "guarantee"
    BOUND = "bound"
    APPROXIMATION = "approximation"


@dataclass(frozen=True, slots=True)
class Accountant:
    """One way to compute an epsilon: its name on the command line and for people, what it is worth, how it works.

    `epsilon` is that of a history at a delta; it raises a ValueError where the accountant does not apply.
    """

    name: str
    title: str
    worth: Worth
    words: str
    epsilon: Callable[[History, float], float]


_PLD = Accountant("pld", "PLD", Worth.GUARANTEE, "privacy loss distributions; the tightest", pld.epsilon)

_BESIDE = (
    Accountant("rdp", "RDP", Worth.BOUND, "Rényi divergences, the moments accountant", rdp.epsilon),
    Accountant("gdp", "GDP", Worth.APPROXIMATION, "central limit; the truth may be larger", gdp.epsilon),
    Accountant(
        "advanced", "advanced", Worth.BOUND, "(epsilon, delta) pairs, advanced composition", composition.advanced
    ),
    Accountant("basic", "basic", Worth.BOUND, "(epsilon, delta) pairs, added up", composition.basic),
)

_ACCOUNTANTS = {accountant.name: accountant for accountant in (_PLD, *_BESIDE)}
"""Accountants by name, the tightest first."""

_ALL = "all"
"""Every accountant."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An accountant's result: an epsilon in nats, maybe infinite, or None where the accountant does not apply.

    `note` says why there is no finite number; "" if there is one.
    """

    accountant: Accountant
    epsilon: float | None
    note: str = ""


def _cost(accountant: Accountant, history: History, delta: float) -> Cost:
    """The result of `accountant` for a history that is valid, at a valid delta."""
    try:
        epsilon = accountant.epsilon(history, delta)
    except ValueError as error:
        return Cost(accountant, None, f"does not apply: {error}")
    return Cost(accountant, epsilon, "" if math.isfinite(epsilon) else "infinite: it proves no finite epsilon")


def costs(name: str, history: History, delta: float) -> list[Cost]:
    """The result of an accountant, or, for "all", the result of each of them.

    Raises:
        ValueError: there is no such accountant, or it does not apply to a mechanism of the history.
    """
    if name == _ALL:
        return [_cost(accountant, history, delta) for accountant in _ACCOUNTANTS.values()]
    if name not in _ACCOUNTANTS:
        raise ValueError(f"accountant is '{name}'; choose one of {', '.join(_ACCOUNTANTS)}, {_ALL}.")
    answer = _cost(_ACCOUNTANTS[name], history, delta)
    if answer.epsilon is None:
        raise ValueError(f"accountant is {name}, which {answer.note}")
    return [answer]


@dataclass(frozen=True, slots=True)
class Spent:
    """The answer of `fedprivacy epsilon`: what each accountant says, at least one, of trainings under one relation.

    The costs are those of a person with `rows` records at each of `clients` clients.
    """

    trainings: Sequence[TrainingSteps]
    delta: float
    costs: Sequence[Cost]
    rows: int
    clients: int

    @property
    def relation(self) -> NeighbouringRelation:
        """The neighbouring relation of every epsilon."""
        return relation_of(self.trainings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The answer of `fedprivacy sigma`: the event with the least noise of which so many steps keep the budget.

    Attributes:
        epsilon: what the past and the training together really spend, by PLD.
        past: the file of what was spent before; "": nothing was.
        past_epsilon: what that spent, by PLD.
    """

    event: PoissonSampledGaussian
    steps: int
    budget: PrivacyBudget
    epsilon: float
    past: str
    past_epsilon: float


def least_noise(
    budget: PrivacyBudget, sampling_rate: float, steps: int, relation: NeighbouringRelation | None, past: str
) -> Noise:
    """The smallest noise multiplier of a training that stays within a budget, after a past.

    The past is a file, or "" for none; without a `relation`, the training has that of the past, or the usual one.

    Raises:
        ValueError: something is out of range, the file is not in order, or no noise keeps the budget.
    """
    check_steps(steps)
    trainings = read(past, relation) if past else []
    history = history_of(trainings)
    relation = relation or relation_of(trainings)
    found = noise_multiplier(budget, sampling_rate, steps, relation, past=history)
    event = PoissonSampledGaussian(sampling_rate, found, relation)
    return Noise(
        event=event,
        steps=steps,
        budget=budget,
        epsilon=pld.epsilon(extend_history(history, event, steps), budget.delta),
        past=past,
        past_epsilon=pld.epsilon(history, budget.delta),
    )


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
    facts += [*meaning(event.relation), _accountant_fact(_PLD)]
    headline = Text(f"noise multiplier {_noise_text(event.noise_multiplier)}", style="bold")
    return Group(headline, facts_table(facts))


def _noise_text(noise_multiplier: float) -> str:
    """A noise multiplier for people: never rounded down.

    >>> _noise_text(0.9612341)
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
        yield training_text(training)
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
