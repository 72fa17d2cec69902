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


def group_norm(tape: Tape, name: str, layer: nn.GroupNorm, inputs: Tensor) -> Tensor:
    """`nn.GroupNorm` on inputs [batch, channels, ...]."""
    return _by_groups(tape, name, layer, inputs, layer.num_groups)


def instance_norm(tape: Tape, name: str, layer: InstanceNorm, inputs: Tensor) -> Tensor:
    """`nn.InstanceNorm1d`, `2d` or `3d` without running statistics: a group for each channel."""
    return _by_groups(tape, name, layer, inputs, layer.num_features)


def _by_groups(tape: Tape, name: str, layer: nn.GroupNorm | InstanceNorm, inputs: Tensor, groups: int) -> Tensor:
    """The batch as one record with `batch * groups` groups: torch's own kernel then sums for each record apart."""
    records, channels = inputs.shape[:2]
    tape.record_axis(name, inputs)
    weight, bias = (None if p is None else tape.expanded(p).reshape(-1) for p in (layer.weight, layer.bias))
    joined = inputs.reshape(1, records * channels, *inputs.shape[2:])
    return functional.group_norm(joined, records * groups, weight, bias, layer.eps).view_as(inputs)


def _watch_trailing(
    tape: Tape,
    name: str,
    layer: nn.LayerNorm | nn.RMSNorm,
    passed: tuple[Tensor, Tensor],
    normalised: Callable[[], Tensor],
) -> None:
    """Record a scale and shift of the last axes, which are added up over the positions between them and the batch."""
    inputs, output = passed
    bias = getattr(layer, "bias", None)
    if layer.weight is None:
        return
    axis, trailing = tape.record_axis(name, inputs), len(layer.normalized_shape)

    def per_record(gradient: Tensor) -> Tensor:
        gradient = gradient.movedim(axis, 0)
        return gradient.flatten(1, -trailing - 1).sum(1) if gradient.dim() > trailing + 1 else gradient

    def pieces_of(gradient: Tensor) -> Sequence[Piece]:
        return Written(per_record(normalised().mul_(gradient))), Written(per_record(gradient))

    tape.watch(name, inputs, output, (tape.part(layer.weight), tape.part(bias)), pieces_of)
