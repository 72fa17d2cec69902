"""The engine: per-record gradients by `vmap(grad)`, clipped and summed.

It is exact for every module that `torch.func` can transform, and it holds one gradient for each record of the batch,
so memory grows with batch size times parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> one loss for each record, shape [batch]."""

_ROUNDING_MARGIN = 1.0 - 2.0**-20
"""Clip a little below C, so that float32 rounding of the scaled gradient cannot carry its norm above C."""


class LossShapeError(ValueError):
    """A loss that does not return one value for each record."""


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name, detached, in the order of the flat gradient vector."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def flat_parameters(model: nn.Module) -> Tensor:
    """The trainable parameters joined to one vector, shape [d], in the order of `trainable_parameters`."""
    return torch.cat([p.flatten() for p in trainable_parameters(model).values()])


def clipped_gradient_sum(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, clipping_norm: float) -> Tensor:
    """Sum over the batch of each record's gradient, scaled down to Euclidean norm at most `clipping_norm`.

    Formal guarantee: adding or removing one row of (`inputs`, `targets`) changes the result by a vector of norm at most
    `clipping_norm` (up to float32 summation error), for models that `supported` accepts. A record whose gradient is not
    finite, or cannot be computed, contributes zero: whether a batch fails must not depend on one record.

    Args:
        model: the model; its trainable parameters are read, nothing is written.
        loss: one loss for each record.
        inputs: the batch, shape [batch, ...]; may be empty.
        targets: shape [batch, ...].
        clipping_norm: C.

    Returns:
        Shape [d], all trainable parameters' gradients flattened and joined in the order of `trainable_parameters`.

    Raises:
        LossShapeError: `loss` does not return one value for each record.
    """
    if len(inputs) == 0:
        return torch.zeros_like(flat_parameters(model))
    gradients = _gradients_or_nan(model, loss, inputs, targets)
    # In float64: squares of entries below 1e-23 vanish in float32, and a vanished norm would not be clipped.
    norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
    finite = torch.isfinite(norms)
    scale = torch.where(finite, (clipping_norm * _ROUNDING_MARGIN / norms).clamp(max=1.0), 0.0)
    gradients = torch.where(finite[:, None], gradients, 0.0)  # 0 * NaN is NaN: select, never multiply
    return scale.to(gradients) @ gradients


def per_record_gradients(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    """Gradients of every record's own loss, shape [batch, d].

    Raises:
        LossShapeError: `loss` does not return one value for each record.
        RuntimeError: the model draws random numbers, or cannot be transformed.
    """
    parameters = trainable_parameters(model)

    def record_loss(parameters: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        losses = loss(functional_call(model, parameters, (record.unsqueeze(0),)), target.unsqueeze(0))
        if losses.shape != (1,):
            raise LossShapeError(
                f"The task's loss returned shape {list(losses.shape)} for a batch of one; "
                "return one value for each record, shape [batch] (for example reduction='none')."
            )
        return losses[0]

    gradients = vmap(grad(record_loss), in_dims=(None, 0, 0), randomness="error")(parameters, inputs, targets)
    return torch.cat([g.flatten(start_dim=1) for g in gradients.values()], dim=1)


def _gradients_or_nan(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    """The batch's gradients; where a record makes the computation fail, record by record, with NaN for that one."""
    try:
        return per_record_gradients(model, loss, inputs, targets)
    except LossShapeError:
        raise
    except Exception:
        rows = [_gradient_or_nan(model, loss, inputs[i : i + 1], targets[i : i + 1]) for i in range(len(inputs))]
        return torch.cat(rows)


def _gradient_or_nan(model: nn.Module, loss: Loss, record: Tensor, target: Tensor) -> Tensor:
    try:
        return per_record_gradients(model, loss, record, target)
    except Exception:
        return torch.full_like(flat_parameters(model), math.nan).unsqueeze(0)
