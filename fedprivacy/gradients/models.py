"""Models and losses that the engine computes with, and the errors about unsound ones.

A loss keeps the records of a batch apart. A model's trained parameters are one flat vector, in one order everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedprivacy.gradients.products import on_gpu

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> one loss for each record, shape [batch]."""


class UnsupportedModelError(ValueError):
    """A model that DP-SGD cannot train soundly, with the layer's name and the remedy."""


class InPlaceError(UnsupportedModelError):
    """A layer's input was changed in place after the layer had read it, so the layer's gradient cannot be known."""


class LossShapeError(ValueError):
    """A loss that does not return one value for each record."""


def checked_losses(losses: Tensor, records: int) -> Tensor:
    """Return the losses, or raise a `LossShapeError` if they are not one for each record."""
    if losses.shape != (records,):
        raise LossShapeError(
            f"The task's loss returned shape {list(losses.shape)} for a batch of {records}; "
            "return one value for each record, shape [batch] (for example reduction='none')."
        )
    return losses


class LossGradient:
    """Gradients of a loss at a model's outputs: cross entropy's is known, any other loss goes through autograd."""

    def __init__(self, loss: Loss) -> None:
        self._loss, self._is_cross_entropy = loss, _is_cross_entropy(loss)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the gradients at outputs [batch, ...], independent rows."""
        if self._knows(outputs, targets):
            return _of_cross_entropy(outputs, targets)
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            return torch.autograd.grad(self.summed(leaf, targets), leaf)[0]

    def summed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return a number from which autograd goes back to the same gradients."""
        if self._knows(outputs, targets):
            return (outputs * _of_cross_entropy(outputs.detach(), targets)).sum()
        return checked_losses(self._loss(outputs, targets), len(outputs)).sum()

    def _knows(self, outputs: Tensor, targets: Tensor) -> bool:
        return self._is_cross_entropy and outputs.dim() == 2 and targets.dtype == torch.int64


def _of_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    probabilities = outputs.softmax(1)
    if on_gpu(outputs):  # an index that is not there would end the process: here such a label's gradient is NaN
        own = targets.unsqueeze(1) == _classes(outputs.shape[1], outputs.device)
        return probabilities.sub_(own / own.sum(1, keepdim=True))
    return probabilities.scatter_add_(1, targets.unsqueeze(1), probabilities.new_full((len(targets), 1), -1.0))


@cache
def _classes(number: int, device: torch.device) -> Tensor:
    return torch.arange(number, device=device)


def _is_cross_entropy(loss: Loss) -> bool:
    """Return whether the loss is `cross_entropy(outputs, targets, reduction="none")` and nothing else."""

    def function(outputs: Tensor, targets: Tensor) -> Tensor:  # torch.fx traces functions, not methods
        return loss(outputs, targets)

    try:
        outputs, targets, call, output = fx.Tracer().trace(function).nodes
    except Exception:  # tracing a user's function may fail in any way; autograd still computes its gradient
        return False
    same = call.target is functional.cross_entropy and call.args == (outputs, targets) and output.args == (call,)
    return same and call.kwargs == _CROSS_ENTROPY


_CROSS_ENTROPY = {
    "weight": None,
    "size_average": None,
    "ignore_index": -100,
    "reduce": None,
    "reduction": "none",
    "label_smoothing": 0.0,
}


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters by name, detached, in the order of the flat gradient vector."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def flat_parameters(model: nn.Module) -> Tensor:
    """Join the trainable parameters to one vector, shape [d], in the order of `trainable_parameters`."""
    return torch.cat([p.flatten() for p in trainable_parameters(model).values()])


@contextmanager
def restoring_parameters(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield the trained parameters, which may be changed; afterwards values and memory are restored."""
    trained = [p for p in model.parameters() if p.requires_grad]
    own = [p.data for p in trained]
    kept = [values.clone() for values in own]
    try:
        yield trained
    finally:
        for p, values, before in zip(trained, own, kept, strict=True):
            p.data = values
            values.copy_(before)


_PARAMETERS_IN_TRAINING = 10
"""Bytes that a private step takes at least, in bytes of the trained parameters: weights, sums, noise and a part's own
gradients. Measured for large linear layers: 9.7, and 13.8 while the engine is prepared."""


def training_bytes(model: nn.Module) -> int:
    """Return how many bytes of memory a private step on this model takes at least, whatever its batch."""
    return _PARAMETERS_IN_TRAINING * sum(parameter.nbytes for parameter in trainable_parameters(model).values())
