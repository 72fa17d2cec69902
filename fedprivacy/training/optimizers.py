"""Optimisers: they move the parameters in a local step by the gradient that a mechanism has released.

Formal guarantee: an optimiser sees parameters and released gradients, never a record. Its result is a
post-processing of those releases (Dwork, Roth 2014, proposition 2.1) and costs no privacy: the event of a local step is
the same whatever the optimiser, its momentum or its weight decay.

Names and formulas are those of `torch.optim`, on one flat vector and in place. The code is ours because many clients
are new processes: the first optimiser of `torch.optim` imports torch's compiler, for a second, and its steps take three
times as long.

>>> import torch
>>> position = torch.tensor([1.0, -1.0])
>>> step = SGD(learning_rate=0.5).start(position)
>>> step(torch.tensor([1.0, 2.0]))
>>> position
tensor([ 0.5000, -2.0000])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:  # every `--help` asks for the names of the optimisers, and need not wait for torch
    from torch import Tensor

LARGEST_LEARNING_RATE = 1e30
"""Largest learning rate: float32 ends at 3e38, and a larger rate could not be multiplied with."""

LARGEST_WEIGHT_DECAY = 1e3

Step: TypeAlias = "Callable[[Tensor], None]"
"""Function that moves a position by a released gradient, shape [d]. It may write into the gradient."""


class Optimizer(Protocol):
    """The settings of an optimiser. Its state is new in every `start`."""

    @property
    def learning_rate(self) -> float:
        """Step size."""
        ...

    def start(self, position: Tensor) -> Step:
        """Return a step that moves `position`, shape [d], in place."""
        ...


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent with heavy-ball momentum (Polyak 1964): `torch.optim.SGD`.

    Attributes:
        learning_rate: step size.
        momentum: share of the previous direction that each step keeps, in [0, 1).
        weight_decay: pull towards zero, added to the gradient.
    """

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start(self, position: Tensor) -> Step:
        import torch

        velocity = torch.zeros_like(position) if self.momentum else None

        def step(gradient: Tensor) -> None:
            if self.weight_decay:
                gradient.add_(position, alpha=self.weight_decay)
            direction = gradient if velocity is None else velocity.mul_(self.momentum).add_(gradient)
            position.sub_(torch.mul(direction, self.learning_rate, out=gradient))

        return step


@dataclass(frozen=True, slots=True)
class Adam:
    """Steps scaled by running averages of the gradient and its square (Kingma, Ba 2015): `torch.optim.Adam`.

    Attributes:
        learning_rate: step size.
        betas: shares of the averages of the gradient and of its square that each step keeps, each in [0, 1).
        eps: number added to the root of the averaged square.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def start(self, position: Tensor) -> Step:
        import torch

        mean, square = torch.zeros_like(position), torch.zeros_like(position)
        (beta1, beta2), numbers = self.betas, count(1)

        def step(gradient: Tensor) -> None:
            number = next(numbers)
            mean.lerp_(gradient, 1.0 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            root = torch.sqrt(square, out=gradient).div_(math.sqrt(1.0 - beta2**number)).add_(self.eps)
            position.addcdiv_(mean, root, value=-self.learning_rate / (1.0 - beta1**number))

        return step


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with weight decay that bypasses its averages (Loshchilov, Hutter 2019): `torch.optim.AdamW`.

    Attributes:
        learning_rate: step size.
        weight_decay: share of the parameters that each step subtracts, for a learning rate of 1.
        betas: as in `Adam`, and so is `eps`.
    """

    learning_rate: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def start(self, position: Tensor) -> Step:
        adam = Adam(self.learning_rate, self.betas, self.eps).start(position)
        kept = 1.0 - self.learning_rate * self.weight_decay

        def step(gradient: Tensor) -> None:
            position.mul_(kept)
            adam(gradient)

        return step


@dataclass(slots=True)
class MovingAverage:
    """Average of iterates with fading weights: it removes noise that remains when the steps themselves stand still.

    After iterate t = 0, 1, 2, ...: average <- d average + (1 - d) iterate, with d = min(decay, (1 + t) / (10 + t)), so
    that the first iterates are soon forgotten (Polyak, Juditsky 1992; with this warm-up De et al. 2022, who show what
    it does for DP-SGD). Post-processing of the iterates, like an optimiser.

    Attributes:
        decay: largest weight of the old average, in [0, 1); 0: the average is the last iterate.
        average: the average so far, by parameter name.
        iterates: number of iterates so far.
    """

    decay: float
    average: dict[str, Tensor] = field(default_factory=dict)
    iterates: int = 0

    def begin(self, start: Mapping[str, Tensor]) -> None:
        """Discard the average and begin at `start`."""
        self.average, self.iterates = {name: value.clone() for name, value in start.items()}, 0

    def add(self, iterate: Mapping[str, Tensor]) -> None:
        """Move the average towards an iterate of the same names and shapes."""
        kept = min(self.decay, (1 + self.iterates) / (10 + self.iterates))
        self.iterates += 1
        for name, value in iterate.items():
            self.average[name].lerp_(value, 1.0 - kept)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""Factories of optimisers, by the name that configurations and grants have for them.

Its arguments `learning_rate`, `momentum` and `weight_decay` are set by the run's settings of these names. An argument
without a default must be given wherever a task's recipe is for another optimiser.
"""


@cache
def settings_of(optimizer: Callable[..., Optimizer]) -> dict[str, bool]:
    """Return the settings that an optimiser takes, and whether each must be given."""
    return {taken.name: taken.default is taken.empty for taken in signature(optimizer).parameters.values()}


def build_optimizer(name: str, learning_rate: float, *, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Build the optimiser that a configuration names.

    Raises:
        ValueError: the name is unknown, or the optimiser does not take a momentum or weight decay that is not 0.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer is '{name}'; choose one of {', '.join(OPTIMIZERS)}.")
    settings, known = {"momentum": momentum, "weight_decay": weight_decay}, settings_of(OPTIMIZERS[name])
    given = {setting for setting, value in settings.items() if value}
    if not given <= known.keys():
        able = [other for other, optimizer in OPTIMIZERS.items() if given <= settings_of(optimizer).keys()]
        raise ValueError(
            f"optimizer is '{name}', momentum {momentum:g} and weight-decay {weight_decay:g}, which it does not take; "
            f"choose {' or '.join(able)}, or leave open what is not for it."
        )
    return OPTIMIZERS[name](learning_rate, **{setting: settings[setting] for setting in settings if setting in known})


MOMENTA = (0.0, 0.9999)
"""Bounds of a momentum, and of the decay of an average."""

LEARNING_RATE_SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda number, rounds: 1.0,
    "linear": lambda number, rounds: 1.0 - (number - 1) / rounds,
    "cosine": lambda number, rounds: 0.5 * (1.0 + math.cos(math.pi * (number - 1) / rounds)),
}
"""Schedules of the local learning rate over the rounds of a run: public numbers, so they cost no privacy.

By name: (number of a round, from 1; number of rounds) -> share of the learning rate, in (0, 1]. The first round has all
of the learning rate, the last one still some: a grant's learning rate must be above zero.
"""
