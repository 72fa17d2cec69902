"""Trainings: what is asked about, one event and how often it was executed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedprivacy.accounting.histories import checked
from fedprivacy.commands.calculator.questions import check_steps
from fedprivacy.values.event_codec import mechanism_name
from fedprivacy.values.events import Event, NeighbouringRelation, PoissonSampledGaussian


@dataclass(frozen=True, slots=True)
class Training:
    """An event and how often it was executed: at least once, and no more often than accountants can compose."""

    event: Event
    steps: int

    def __post_init__(self) -> None:
        check_steps(self.steps)


DEFAULT_MECHANISM = mechanism_name(PoissonSampledGaussian)


def described(training: Training) -> str:
    """A training for people, without its relation; its mechanism, unless it is the usual one.

    >>> described(Training(PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0), 1000))
    '1,000 steps at sampling rate 0.01, noise multiplier 1'
    """
    event = training.event
    names = [field.name for field in dataclasses.fields(event) if field.name != "relation"]
    settings = ", ".join(f"{name.replace('_', ' ')} {getattr(event, name):.10g}" for name in names)
    mechanism = mechanism_name(type(event))
    of = "" if mechanism == DEFAULT_MECHANISM else f"of {mechanism} "
    return f"{steps_text(training.steps)} {of}at {settings}"


def steps_text(steps: int) -> str:
    """'1 step', '1,000 steps'."""
    return f"{steps:,} step" if steps == 1 else f"{steps:,} steps"


def composed(trainings: Sequence[Training]) -> dict[Event, int]:
    """How often each event was executed.

    Raises:
        ValueError: the trainings mix neighbouring relations, or have too many steps together.
    """
    history: Counter[Event] = Counter()
    for training in trainings:
        history[training.event] += training.steps
    if history:
        check_steps(history.total())
    return checked(history)


def relation_of(trainings: Sequence[Training]) -> NeighbouringRelation | None:
    """The relation that trainings share; None: there are none."""
    return trainings[0].event.relation if trainings else None
