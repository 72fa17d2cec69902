"""A client's local round: what it begins with besides the global model, and its steps along given gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedprivacy.gradients import flat_parameters, trainable_parameters
from fedprivacy.training.algorithms import FEDAVG, Algorithm, LocalRound, LocalUpdate, StepsExceededError
from fedprivacy.training.optimizers import Optimizer

MeanGradient = Callable[[int, Tensor], Tensor]
"""(number of a local step, from 1; position, shape [..., d]) -> the mean gradient there, of the same shape.

The position is one object for all consecutive steps, moved in place. The returned tensor is overwritten.
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """State with which a client begins a round, besides the global model.

    Attributes:
        own: vector that it kept of its last round, shape [d]; None: nothing yet.
        control: vector that the server sends besides the model, shape [d]; None: nothing.
    """

    own: Tensor | None = None
    control: Tensor | None = None


NOTHING_KEPT = Kept()

CONTROL = "control"
"""Name of a server's control in a message, as a record and as an array."""


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


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """The use that a client's round makes of its steps' gradients: with privacy and without, alone and stacked.

    Formal guarantee: everything here is a post-processing of the given gradients.

    Attributes:
        optimizer: moves the parameters by the mean gradients.
        proximal_mu: FedProx's pull towards the global model (Li et al. 2020), added to each gradient.
        algorithm: federated algorithm, which fixes the starting point and uses the result.
    """

    optimizer: Optimizer
    proximal_mu: float = 0.0
    algorithm: Algorithm = FEDAVG

    def alone(
        self, model: nn.Module, mean_gradient: Callable[[int], Tensor], steps: int, before: Kept = NOTHING_KEPT
    ) -> LocalUpdate:
        """Take one client's steps from the model's present parameters, which are then those that are sent.

        Args:
            model: its trainable parameters move.
            mean_gradient: number of a local step, from 1 -> the mean gradient at the model's parameters, shape [d].
            steps: number of local steps, >= 1.
            before: vector that the client kept of its last round, and the server's control.

        Raises:
            ValueError: the model has none of the layers that each client keeps under this algorithm.
        """
        trained, there = [p for p in model.parameters() if p.requires_grad], None

        def go(position: Tensor) -> None:
            """Make the model's parameters views of a position, so that moving the position moves them."""
            nonlocal there
            if position is not there:
                nn.utils.vector_to_parameters(position, trained)
                there = position

        def gradient(step: int, position: Tensor) -> Tensor:
            go(position)
            return mean_gradient(step).to(position.dtype)

        shared = flat_parameters(model)
        control = None if before.control is None else before.control.to(shared.device)
        own = self.algorithm.first(shared, control) if before.own is None else before.own.to(shared.device)
        descent = Descent(gradient, self.optimizer, self.proximal_mu, steps)
        update = self.algorithm.train(descent.round(shared, own, control, personal_mask(self.algorithm, model)))
        go(update.sent)
        return update

    def take_stacked(
        self,
        model: nn.Module,
        mean_gradients: MeanGradient,
        steps: int,
        own: Sequence[Tensor | None],
        control: Tensor | None,
    ) -> LocalUpdate:
        """Take the steps of clients that are stacked, each from the model's present parameters: a row for each.

        Args:
            model: it is not moved.
            mean_gradients: see `MeanGradient`; positions are of shape [clients, d].
            steps: number of local steps of each client, >= 1.
            own: vector that each client kept of its last round, shape [d]; None: nothing yet.
            control: vector that the server sends besides the model, shape [d]; None: nothing.

        Raises:
            ValueError: see `alone`.
        """
        start = flat_parameters(model)
        shared = kept = start.expand(len(own), -1)
        if self.algorithm.keeps:
            first = self.algorithm.first(start, control)
            kept = torch.stack([first if one is None else one for one in own])
        descent = Descent(mean_gradients, self.optimizer, self.proximal_mu, steps)
        return self.algorithm.train(descent.round(shared, kept, control, personal_mask(self.algorithm, model)))


def personal_mask(algorithm: Algorithm, model: nn.Module) -> Tensor | None:
    """Make the mask of the trained parameters in personal layers, bool, shape [d]; None: the algorithm has none.

    Raises:
        ValueError: the model has no such layers.
    """
    names = algorithm.layers(model)
    if not names:
        return None
    parameters = trainable_parameters(model).items()
    return torch.cat([torch.full((p.numel(),), name in names, device=p.device) for name, p in parameters])
