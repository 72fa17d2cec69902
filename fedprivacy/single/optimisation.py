"""Optimisation: a torch optimiser and a schedule, as `fedprivacy.train` is given them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from inspect import Parameter, signature
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from fedprivacy.single.arguments import shown
from fedprivacy.training.optimizers import SGD, Adam, AdamW, build_optimizer

GivenOptimizer: TypeAlias = "str | torch.optim.Optimizer | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]"
"""A name; an optimiser of the model's parameters; or a factory of one, given the parameters."""

Rates: TypeAlias = Callable[[int], float]
MakesScheduler: TypeAlias = Callable[[torch.optim.Optimizer], LRScheduler]
GivenSchedule: TypeAlias = Rates | MakesScheduler
"""(number of the step, from 1) -> learning rate; or a class of torch's schedulers, as it is or in a `partial`."""

_OF_TORCH: dict[type, Callable[..., torch.optim.Optimizer]] = {
    SGD: torch.optim.SGD,
    Adam: torch.optim.Adam,
    AdamW: torch.optim.AdamW,
}
"""Optimisers of torch by ours, which have the same formulas and the same names of settings."""


class Optimisation:
    """Moves a model's parameters by their gradients, at the rate of the schedule.

    Attributes:
        optimizer: torch optimiser.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: GivenSchedule | None, steps: int) -> None:
        """Check that both can take every step.

        Raises:
            ValueError: the schedule gives no learning rate for some step, or needs a measurement.
        """
        self.optimizer = optimizer
        self._rates: list[float] | None = None
        self._scheduler: LRScheduler | None = None
        if schedule is None:
            return
        if _makes_scheduler(schedule):
            self._scheduler = scheduler = cast(MakesScheduler, schedule)(optimizer)
            _check_takes_nothing("schedule", scheduler)
        else:
            self._rates = [_rate(cast(Rates, schedule), step) for step in range(1, steps + 1)]

    def step(self, number: int) -> None:
        """Take a step, counted from 1."""
        if self._rates is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rates[number - 1]
        self.optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        """Return the state of both, as torch has it."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self._scheduler.state_dict() if self._scheduler else None,
        }

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        """Restore what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["schedule"])


def optimizer_of(
    given: GivenOptimizer, model: nn.Module, learning_rate: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimiser of a model's trained parameters.

    Raises:
        ValueError: there is no such optimiser, it moves other parameters, or it needs several gradients in a step.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if isinstance(given, str):
        ours: Any = build_optimizer(given, learning_rate, momentum=momentum, weight_decay=weight_decay)
        if type(ours) not in _OF_TORCH:
            raise ValueError(f"optimizer is '{given}', which torch does not have; give a torch optimiser.")
        settings = asdict(ours)
        return _OF_TORCH[type(ours)](trained, lr=settings.pop("learning_rate"), **settings)
    if momentum or weight_decay:
        raise ValueError("momentum and weight_decay are those of a named optimizer; give them to the optimiser itself.")
    if not (isinstance(given, torch.optim.Optimizer) or callable(given)):
        raise ValueError(f"optimizer is {shown(given)}; give a name, a torch.optim.Optimizer, or a factory of one.")
    made = given if isinstance(given, torch.optim.Optimizer) else given(trained)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(f"optimizer makes a {type(made).__name__}; give a torch.optim.Optimizer, or a factory of one.")
    moved = [p for group in made.param_groups for p in group["params"]]
    if not set(moved) <= set(model.parameters()):
        raise ValueError("optimizer moves parameters that are not the model's; make it of model.parameters().")
    _check_takes_nothing("optimizer", made)
    return made


def _makes_scheduler(schedule: GivenSchedule) -> bool:
    made = schedule.func if isinstance(schedule, partial) else schedule
    return isinstance(made, type) and issubclass(made, LRScheduler)


def _rate(schedule: Rates, step: int) -> float:
    try:
        rate = float(schedule(step))
    except Exception as error:
        raise ValueError(
            f"schedule fails for step {step} ({error}); give a function of a step's number that returns a learning "
            "rate, or functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=steps)."
        ) from error
    if not 0.0 <= rate < math.inf:
        raise ValueError(f"schedule is {rate} for step {step}; return a learning rate from 0 on.")
    return rate


def _check_takes_nothing(setting: str, moving: torch.optim.Optimizer | LRScheduler) -> None:
    needed = [p.name for p in signature(moving.step).parameters.values() if p.default is Parameter.empty]
    if needed:
        kind = type(moving).__name__
        raise ValueError(f"{setting} is {kind}, whose steps need {needed[0]}; give one that steps by gradients alone.")
