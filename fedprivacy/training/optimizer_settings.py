"""The choice of an optimiser: how local steps move a model, and which average of the models is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support.settings import LEAST, KnownSettings, SettingsGroup, setting
from fedprivacy.training.optimizers import (
    LARGEST_LEARNING_RATE,
    LARGEST_WEIGHT_DECAY,
    LEARNING_RATE_SCHEDULES,
    MOMENTA,
    OPTIMIZERS,
    build_optimizer,
)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(SettingsGroup, question="How does a client train?", basic=("learning-rate",)):
    """Optimiser by which local steps move a model along released gradients, and the average of models that is kept."""

    optimizer: str = setting(f"Optimiser of the local steps: {', '.join(OPTIMIZERS)}.", choices=OPTIMIZERS)
    learning_rate: float = setting("Step size of the local steps.", bounds=(LEAST, LARGEST_LEARNING_RATE))
    momentum: float = setting("Momentum of the local steps, for sgd.", bounds=MOMENTA)
    weight_decay: float = setting(
        "Weight decay of the local steps, for sgd and adamw.", bounds=(0.0, LARGEST_WEIGHT_DECAY)
    )
    ema_decay: float = setting(
        "Decay of the average of the global models, which is evaluated and kept; 0: the last.", bounds=MOMENTA
    )
    learning_rate_schedule: str = setting(
        f"How the step size of the local steps changes over the rounds: {', '.join(LEARNING_RATE_SCHEDULES)}.",
        "constant",
        choices=LEARNING_RATE_SCHEDULES,
    )

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find momentum or weight decay for an optimiser that takes none."""
        return known.problems(_taken_by_no_step)


def _taken_by_no_step(optimizer: str, momentum: float, weight_decay: float) -> Iterator[str]:
    try:
        build_optimizer(optimizer, 1.0, momentum=momentum, weight_decay=weight_decay)
    except ValueError as error:
        yield str(error)
