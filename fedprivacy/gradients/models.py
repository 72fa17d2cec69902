"""Models and losses that the engine computes with, and the errors about unsound ones.

A loss keeps the records of a batch apart. A model's trained parameters are one flat vector, in one order everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


def gradient_of(loss: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the gradient of a loss: (outputs [batch, ...], targets [batch, ...]) -> [batch, ...], independent rows.

    Cross entropy's is known; any other loss goes through autograd.
    """
    known = _is_cross_entropy(loss)

    def gradient(outputs: Tensor, targets: Tensor) -> Tensor:
        if known and outputs.dim() == 2 and targets.dtype == torch.int64 and not on_gpu(outputs):
            probabilities = outputs.softmax(1)
            return probabilities.scatter_add_(1, targets.unsqueeze(1), probabilities.new_full((len(targets), 1), -1.0))
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            losses = checked_losses(loss(leaf, targets), len(leaf))
            return torch.autograd.grad(losses.sum(), leaf)[0]

    return gradient


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
