"""Local steps along given gradients: the part that training with and without privacy, alone and stacked, shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedprivacy.training.algorithms import LocalRound, StepsExceededError
from fedprivacy.training.optimizers import Optimizer

MeanGradient = Callable[[int, Tensor], Tensor]
"""(number of a local step, from 1; position, shape [..., d]) -> the mean gradient there, of the same shape.

The position is one object for all consecutive steps, moved in place. The returned tensor is overwritten.
"""


@dataclass(slots=True)
class Descent:
    """The local steps of a round; see `fedprivacy.training.algorithms.algorithm.Descend`.

    Attributes:
        mean_gradient: called once for each step.
        optimizer: moves positions by mean gradients; its state is new in every call.
        proximal_mu: FedProx's pull towards the starting point of a call (Li et al. 2020).
        granted: number of steps that may be taken, in all calls together.
        taken: number of steps taken so far.
    """

    mean_gradient: MeanGradient
    optimizer: Optimizer
    proximal_mu: float
    granted: int
    taken: int = field(default=0, init=False)

    def round(self, shared: Tensor, own: Tensor, control: Tensor | None, personal: Tensor | None) -> LocalRound:
        """Return the algorithm's inputs for the round of these steps; see `LocalRound`."""
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
            move(gradient)
            if only is not None:
                torch.where(only, position, start, out=position)
        return position


@dataclass(slots=True)
class ModelAt:
    """A model whose trained parameters are views of a position, so that moving the position moves them."""

    model: nn.Module
    _position: Tensor | None = field(default=None, init=False)

    def go(self, position: Tensor) -> None:
        """Move the model to a position, shape [d]; nothing happens if it is there already."""
        if position is not self._position:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            torch.nn.utils.vector_to_parameters(position, trained)
            self._position = position
