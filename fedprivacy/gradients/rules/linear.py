"""Linear maps: every layer that multiplies a weight with vectors at one or more positions of a record."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients.pieces import Outer, Piece, Written, over_positions
from fedprivacy.gradients.tape import Part, Tape


def linear(tape: Tape, name: str, layer: nn.Linear, inputs: Tensor) -> Tensor:
    """`nn.Linear` on inputs [batch, ..., d] or [positions, batch, ..., d]."""
    output = functional.linear(inputs, layer.weight, layer.bias)
    watch_linear(tape, name, inputs, output, tape.part(layer.weight), tape.part(layer.bias))
    return output


def watch_linear(tape: Tape, name: str, inputs: Tensor, output: Tensor, weight: Part | None, bias: Part | None) -> None:
    """Record output = inputs weight^T + bias, where weight and bias are parts of trained parameters or frozen."""
    if weight is None and bias is None:
        return
    axis = tape.record_axis(name, inputs)

    def pieces_of(gradient: Tensor) -> Sequence[Piece]:
        if gradient.dim() == 2:
            return Outer(inputs.detach(), gradient), Written(gradient)
        sources, gradients = (_over_positions(t, axis) for t in (inputs.detach(), gradient))
        return over_positions(sources, gradients, tape.kept_bytes), Written(gradients.sum(1))

    tape.watch(name, inputs, output, (weight, bias), pieces_of)


def _over_positions(tensor: Tensor, axis: int) -> Tensor:
    """Shape [batch, positions, features]."""
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1, tensor.shape[-1])
