"""Local steps along given gradients: what training with and without privacy, alone and in a stack, have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedprivacy._support.spans import span
from fedprivacy.training.algorithms import LocalRound, StepsExceededError
from fedprivacy.training.optimizers import Optimizer

MeanGradient = Callable[[int, Tensor], Tensor]
"""The number of a local step, from 1, and where it is taken, shape [..., d] -> its mean gradient, of the same shape.

The position is the same object for all steps that follow one another, moved in place. What is returned is overwritten.
"""


@dataclass(slots=True)
class Descent:
    """The local steps of a round; see `fedprivacy.training.algorithms.algorithm.Descend`.

    Attributes:
        mean_gradient: asked once for each step.
        optimizer: moves positions by mean gradients; what it remembers is new in every call.
        proximal_mu: FedProx's pull towards where a call began (Li et al. 2020).
        granted: steps that may be taken, in all calls together.
        taken: so far.
    """

    mean_gradient: MeanGradient
    optimizer: Optimizer
    proximal_mu: float
    granted: int
    taken: int = field(default=0, init=False)

    def round(self, shared: Tensor, own: Tensor, control: Tensor | None, personal: Tensor | None) -> LocalRound:
        """What an algorithm has of the round whose steps these are; see `LocalRound`."""
        return LocalRound(shared, own, control, personal, self.granted, self.optimizer.learning_rate, self)

    def __call__(
        self, start: Tensor, steps: int, *, correction: Tensor | None = None, only: Tensor | None = None
    ) -> Tensor:
        if self.taken + steps > self.granted:
            raise StepsExceededError(
                f"The algorithm asks for {steps} private steps after {self.taken}, and {self.granted} were granted; "
                "let it take LocalRound.steps in all."
            )
        position = start.clone()
        move = self.optimizer.start(position)
        for _ in range(steps):
            self.taken += 1
            gradient = self.mean_gradient(self.taken, position)
            if self.proximal_mu:
                gradient.add_(position - start, alpha=self.proximal_mu)
            if correction is not None:
                gradient.add_(correction)
            with span("optimiser step"):
                move(gradient)
            if only is not None:
                torch.where(only, position, start, out=position)
        return position


@dataclass(slots=True)
class ModelAt:
    """A model whose trained parameters are views of a position, so that what moves it moves them."""

    model: nn.Module
    _position: Tensor | None = field(default=None, init=False)

    def go(self, position: Tensor) -> None:
        """Stand at a position, shape [d]; nothing is done where it stands there already."""
        if position is not self._position:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            torch.nn.utils.vector_to_parameters(position, trained)
            self._position = position
