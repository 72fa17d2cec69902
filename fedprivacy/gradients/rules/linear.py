"""Linear maps: every layer that multiplies a weight with vectors at one or more positions of a record."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedprivacy.gradients import products
from fedprivacy.gradients.pieces import Outer, Piece, Written, over_positions
from fedprivacy.gradients.tape import Part, Tape


def linear(tape: Tape, name: str, layer: nn.Linear, inputs: Tensor) -> Tensor:
    """`nn.Linear` on inputs [batch, ..., d] or [positions, batch, ..., d]."""
    output = products.linear(inputs, layer.weight, layer.bias)
    watch_linear(tape, name, inputs, output, (tape.part(layer.weight), tape.part(layer.bias)))
    return output


def watch_linear(tape: Tape, name: str, inputs: Tensor, output: Tensor, parts: tuple[Part | None, Part | None]) -> None:
    """Record output = inputs weight^T + bias, where weight and bias are parts of trained parameters or frozen."""
    weight, bias = parts
    if weight is None and bias is None:
        return
    axis = tape.record_axis(name, inputs)

    def pieces_of(gradient: Tensor) -> Sequence[Piece | None]:
        rows, gradients = (_records_first(t, axis) for t in (inputs.detach(), gradient))
        written = None if weight is None else linear_weight(rows, gradients, tape.kept_bytes)
        return written, linear_bias(gradients)

    tape.watch(name, inputs, output, (weight, bias), pieces_of)


def linear_weight(inputs: Tensor, gradient: Tensor, kept_bytes: int) -> Piece:
    """The piece of a weight, from what the layer read [batch, ..., d] and its output's gradient [batch, ..., p]."""
    if gradient.dim() == 2:
        return Outer(inputs, gradient)
    return over_positions(inputs.flatten(1, -2), gradient.flatten(1, -2), kept_bytes)


def linear_bias(gradient: Tensor) -> Piece:
    """The piece of a bias, from the gradient [batch, ..., p] of the layer's output."""
    return Written(gradient if gradient.dim() == 2 else gradient.flatten(1, -2).sum(1))


def _records_first(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, 0) if axis else tensor
