"""The answers of the calculator: what accountants say of a training, what their numbers are worth, the least noise."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedprivacy.accounting import composition, gdp, noise_multiplier, pld, rdp
from fedprivacy.accounting.histories import extended
from fedprivacy.commands.calculator.trainings import TrainingSteps, check_steps, composed, read, relation_of
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import History, NeighbouringRelation, PoissonSampledGaussian


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


PLD = Accountant("pld", "PLD", Worth.GUARANTEE, "privacy loss distributions; the tightest", pld.epsilon)

_BESIDE = (
    Accountant("rdp", "RDP", Worth.BOUND, "Rényi divergences, the moments accountant", rdp.epsilon),
    Accountant("gdp", "GDP", Worth.APPROXIMATION, "central limit; the truth may be larger", gdp.epsilon),
    Accountant(
        "advanced", "advanced", Worth.BOUND, "(epsilon, delta) pairs, advanced composition", composition.advanced
    ),
    Accountant("basic", "basic", Worth.BOUND, "(epsilon, delta) pairs, added up", composition.basic),
)

ACCOUNTANTS = {accountant.name: accountant for accountant in (PLD, *_BESIDE)}
"""Accountants by name, the tightest first."""

ALL = "all"
"""Every accountant."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An accountant's result: an epsilon in nats, maybe infinite, or None where the accountant does not apply.

    `note` says why there is no finite number; "" if there is one.
    """

    accountant: Accountant
    epsilon: float | None
    note: str = ""


def cost(accountant: Accountant, history: History, delta: float) -> Cost:
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
    if name == ALL:
        return [cost(accountant, history, delta) for accountant in ACCOUNTANTS.values()]
    if name not in ACCOUNTANTS:
        raise ValueError(f"accountant is '{name}'; choose one of {', '.join(ACCOUNTANTS)}, {ALL}.")
    answer = cost(ACCOUNTANTS[name], history, delta)
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
    history = composed(trainings)
    relation = relation or relation_of(trainings)
    found = noise_multiplier(budget, sampling_rate, steps, relation, past=history)
    event = PoissonSampledGaussian(sampling_rate, found, relation)
    return Noise(
        event=event,
        steps=steps,
        budget=budget,
        epsilon=pld.epsilon(extended(history, event, steps), budget.delta),
        past=past,
        past_epsilon=pld.epsilon(history, budget.delta),
    )
