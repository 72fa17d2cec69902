"""The answers of the calculator: what was spent, and the least noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedprivacy.accounting import noise_multiplier, pld
from fedprivacy.accounting.histories import extended
from fedprivacy.commands.calculator.accountants import Cost
from fedprivacy.commands.calculator.history_files import read
from fedprivacy.commands.calculator.questions import check_steps
from fedprivacy.commands.calculator.trainings import Training, composed, relation_of
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

DEFAULT_RELATION = NeighbouringRelation.ADD_OR_REMOVE_ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The answer of `fedprivacy epsilon`.

    Attributes:
        trainings: what was asked about, under one neighbouring relation.
        delta: at which the epsilons hold.
        costs: what each accountant says, at least one.
        history: the file that it was read from; "": it was typed.
        figure: the file that was drawn; "": none.
    """

    trainings: Sequence[Training]
    delta: float
    costs: Sequence[Cost]
    history: str
    figure: str

    @property
    def relation(self) -> NeighbouringRelation:
        """The neighbouring relation of every epsilon; the usual one where nothing was executed."""
        return relation_of(self.trainings) or DEFAULT_RELATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The answer of `fedprivacy sigma`.

    Attributes:
        event: with the smallest noise multiplier that keeps the budget.
        steps: of the training, that is executions of `event`.
        budget: of the past and the training together.
        epsilon: what they really spend, by PLD.
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

    Args:
        budget: finite epsilon, and delta.
        sampling_rate: of the training, in (0, 1].
        steps: of the training, at least 1.
        relation: of the training; None: that of the past, or the usual one.
        past: the file of what was spent before; "": nothing was.

    Raises:
        ValueError: something is out of range, the file is not in order, or no noise keeps the budget.
    """
    check_steps(steps)
    trainings = read(past, relation) if past else []
    history = composed(trainings)
    relation = relation or relation_of(trainings) or DEFAULT_RELATION
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
