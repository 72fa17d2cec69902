"""Convolutions in one, two and three dimensions, with any stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients.pieces import Piece, Written, written_or_not
from fedprivacy.gradients.tape import Tape

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

Padded = tuple[Convolution, tuple[int, ...]]
"""A convolution, and the zeros that it adds to its inputs itself."""

_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}

_FEW_POSITIONS = 100
_FEW_CHANNELS = 8
_LARGE_WEIGHT = 2**17
"""Where patches laid out as a matrix beat a convolution with a group for each record: measured on one core for twenty
layers of 1 to 256 channels and 8 x 8 to 32 x 32 positions; the loser takes up to four times as long."""

_PATCHES_IN_FLIGHT = 2**18
"""Entries of patches that are laid out at a time, to stay in a processor's cache."""


def convolution(tape: Tape, name: str, layer: Convolution, inputs: Tensor) -> Tensor:
    """`nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d` on inputs [batch, channels, ...]."""
    padded, padding = padded_inputs(layer, inputs)
    convolve = _CONVOLVE[len(layer.kernel_size)]
    output = convolve(padded, layer.weight, layer.bias, layer.stride, padding, layer.dilation, layer.groups)

    weight, bias = tape.part(layer.weight), tape.part(layer.bias)

    def pieces_of(gradient: Tensor) -> Sequence[Piece | None]:
        if weight is None:
            return None, convolution_bias(gradient)
        written = convolution_weight((layer, padding), padded.detach(), gradient, tape.kept_bytes)
        return written, convolution_bias(gradient)

    tape.record_axis(name, inputs)
    tape.watch(name, padded, output, (weight, bias), pieces_of)
    return output


def convolution_weight(layer: Padded, inputs: Tensor, gradient: Tensor, kept_bytes: int) -> Piece:
    """The piece of a weight.

    Args:
        layer: the convolution, and the zeros that it adds to its inputs itself.
        inputs: what it read, shape [batch, channels, ...].
        gradient: of its output, shape [batch, out_channels, ...].
        kept_bytes: how many bytes of written gradients may be kept.
    """
    write_out = _by_patches if _as_matrix(layer[0], gradient) else _by_groups

    def write(start: int, stop: int) -> Written:
        return write_out(layer, inputs[start:stop], gradient[start:stop])

    return written_or_not(write, len(inputs), layer[0].weight.nbytes, kept_bytes)


def convolution_bias(gradient: Tensor) -> Piece:
    """The piece of a bias, from the gradient [batch, out_channels, ...] of the layer's output."""
    return Written(gradient.flatten(2).sum(2))


def padded_inputs(layer: Convolution, inputs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The inputs, padded where the convolution itself cannot; and the zero padding that is left to it."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return inputs, layer.padding
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    return padded, (0,) * len(layer.kernel_size)


def _as_matrix(layer: Convolution, output: Tensor) -> bool:
    """Whether to lay out patches as a matrix."""
    if not isinstance(layer, nn.Conv2d) or layer.groups > 1 or layer.dilation != (1, 1):
        return False
    few_positions = output.shape[2] * output.shape[3] <= _FEW_POSITIONS
    return few_positions or layer.in_channels < _FEW_CHANNELS or layer.weight.numel() >= _LARGE_WEIGHT


def _by_patches(padded: Padded, inputs: Tensor, gradient: Tensor) -> Written:
    """Weight gradients as products of output gradients and patches, channels last: [batch, out, height, width, in]."""
    layer, padding = padded
    above, left, down, right, height, width = *padding, *layer.stride, *layer.kernel_size
    channels_last = functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, left, left, above, above)).contiguous()
    records, channels = inputs.shape[:2]
    rows, columns = gradient.shape[2:]
    record, row, column, _ = channels_last.stride()
    patches = channels_last.as_strided(
        (records, rows, columns, height, width, channels), (record, row * down, column * right, row, column, 1)
    )
    gradients = gradient.flatten(2)
    written = gradient.new_empty(records, layer.out_channels, height * width * channels)
    chunk = max(1, _PATCHES_IN_FLIGHT // (rows * columns * written.shape[2]))
    for start in range(0, records, chunk):
        some = slice(start, start + chunk)
        matrix = patches[some].reshape(-1, rows * columns, written.shape[2]).to(gradient.dtype)
        torch.bmm(gradients[some], matrix, out=written[some])
    return Written(written.view(records, -1, height, width, channels), axes=(0, 3, 1, 2))


def _by_groups(padded: Padded, inputs: Tensor, gradient: Tensor) -> Written:
    """Weight gradients by one convolution with a group for each record (Rochette et al. 2019)."""
    layer, padding = padded
    records = len(inputs)
    written: Tensor = torch.ops.aten.convolution_backward(
        gradient.reshape(1, -1, *gradient.shape[2:]),
        inputs.to(gradient.dtype).reshape(1, -1, *inputs.shape[2:]),
        gradient.new_empty(records * layer.out_channels, *layer.weight.shape[1:]),
        None,
        layer.stride,
        padding,
        layer.dilation,
        False,
        [0] * len(padding),
        records * layer.groups,
        [False, True, False],
    )[1]
    return Written(written.view(records, *layer.weight.shape))
