"""Local steps from the global model along given gradients: what training with and without privacy have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedprivacy._support.spans import span
from fedprivacy.gradients import flat_parameters, trainable_parameters
from fedprivacy.training.optimizers import Optimizer

GradientSum = Callable[[int], Tensor]
"""The number of a local step, from 1 -> the sum of its sample's gradients at the model as it is then, shape [d]."""


def descend(
    model: nn.Module, gradient_sum: GradientSum, divisor: float, optimizer: Optimizer, proximal_mu: float, *, steps: int
) -> dict[str, Tensor]:
    """Take local steps from the model's present parameters; the model is changed in place.

    Args:
        model: its trainable parameters move.
        gradient_sum: asked once for each step; what it returns is overwritten.
        divisor: of every sum, the expected batch size.
        optimizer: moves the parameters by the mean gradients.
        proximal_mu: FedProx's pull towards where the parameters began (Li et al. 2020).
        steps: how many, >= 1.

    Returns:
        Copies of the trained parameters, by name.
    """
    position = flat_parameters(model)
    start = position.clone() if proximal_mu else None
    trained = [p for p in model.parameters() if p.requires_grad]
    torch.nn.utils.vector_to_parameters(position, trained)  # views: what moves it moves them
    move = optimizer.start(position)
    for step in range(1, steps + 1):
        gradient = gradient_sum(step).div_(divisor).to(position.dtype)
        if start is not None:
            gradient.add_(position - start, alpha=proximal_mu)
        with span("optimiser step"):
            move(gradient)
    return {name: p.clone() for name, p in trainable_parameters(model).items()}
