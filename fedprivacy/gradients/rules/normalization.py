"""Normalisations with trained scale and shift, each over one record's own values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients.pieces import Piece, Written
from fedprivacy.gradients.tape import Tape

InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


def layer_norm(tape: Tape, name: str, layer: nn.LayerNorm, inputs: Tensor) -> Tensor:
    """`nn.LayerNorm` on inputs [batch, ..., *normalized_shape]."""
    shape = list(layer.normalized_shape)
    output, mean, rstd = torch.native_layer_norm(inputs, shape, layer.weight, layer.bias, layer.eps)

    def normalised() -> Tensor:
        return (inputs.detach() - mean.detach()).mul_(rstd.detach())

    _watch_trailing(tape, name, layer, (inputs, output), normalised)
    return output


def rms_norm(tape: Tape, name: str, layer: nn.RMSNorm, inputs: Tensor) -> Tensor:
    """`nn.RMSNorm` on inputs [batch, ..., *normalized_shape]."""
    shape = list(layer.normalized_shape)
    output = functional.rms_norm(inputs, shape, layer.weight, layer.eps)

    def normalised() -> Tensor:
        return functional.rms_norm(inputs.detach(), shape, eps=layer.eps)

    _watch_trailing(tape, name, layer, (inputs, output), normalised)
    return output


def group_norm(tape: Tape, name: str, layer: nn.GroupNorm | InstanceNorm, inputs: Tensor) -> Tensor:
    """`nn.GroupNorm` on inputs [batch, channels, ...]; `nn.InstanceNorm1d`, `2d`, `3d`: a group for each channel.

    The batch is treated as one record with `batch * groups` groups, so that torch's kernel sums each record separately.
    """
    records, channels = inputs.shape[:2]
    groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else channels
    tape.record_axis(name, inputs)
    weight, bias = (None if p is None else tape.expand(p).reshape(-1) for p in (layer.weight, layer.bias))
    joined = inputs.reshape(1, records * channels, *inputs.shape[2:])
    return functional.group_norm(joined, records * groups, weight, bias, layer.eps).view_as(inputs)


def over_trailing(gradient: Tensor, trailing: int) -> Piece:
    """Return the piece of a parameter that acts on the last `trailing` axes, given its gradient at every earlier
    position.
    """
    return Written(gradient.flatten(1, -trailing - 1).sum(1) if gradient.dim() > trailing + 1 else gradient)


def _watch_trailing(
    tape: Tape,
    name: str,
    layer: nn.LayerNorm | nn.RMSNorm,
    passed: tuple[Tensor, Tensor],
    normalised: Callable[[], Tensor],
) -> None:
    """Record a scale and shift of the last axes, for the tensors that `passed` in and out."""
    inputs, output = passed
    if layer.weight is None:
        return
    axis, trailing = tape.record_axis(name, inputs), len(layer.normalized_shape)

    def pieces_of(gradient: Tensor) -> Sequence[Piece]:
        scale = normalised().mul_(gradient)
        return tuple(over_trailing(each.movedim(axis, 0), trailing) for each in (scale, gradient))

    tape.watch(name, inputs, output, (tape.part(layer.weight), tape.part(getattr(layer, "bias", None))), pieces_of)
