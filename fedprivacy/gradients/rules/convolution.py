"""Convolutions in one, two and three dimensions, with any stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients.pieces import Piece, Written, written_or_not
from fedprivacy.gradients.tape import Tape

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

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
    padded, padding = _padded(layer, inputs)
    convolve = _CONVOLVE[len(layer.kernel_size)]
    output = convolve(padded, layer.weight, layer.bias, layer.stride, padding, layer.dilation, layer.groups)
    written = _by_patches if _as_matrix(layer, output) else _by_groups

    def pieces_of(gradient: Tensor) -> Sequence[Piece]:
        def write(start: int, stop: int) -> Written:
            return written(layer, padding, padded.detach()[start:stop], gradient[start:stop])

        weight = written_or_not(write, tape.records, layer.weight.nbytes, tape.kept_bytes)
        return weight, Written(gradient.flatten(2).sum(2))

    tape.record_axis(name, inputs)
    tape.watch(name, padded, output, (tape.part(layer.weight), tape.part(layer.bias)), pieces_of)
    return output


def _padded(layer: Convolution, inputs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
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


def _by_patches(layer: Convolution, padding: tuple[int, ...], inputs: Tensor, gradient: Tensor) -> Written:
    """Weight gradients as products of output gradients and patches, channels last: [batch, out, height, width, in]."""
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


def _by_groups(layer: Convolution, padding: tuple[int, ...], inputs: Tensor, gradient: Tensor) -> Written:
    """Weight gradients by one convolution with a group for each record (Rochette et al. 2019)."""
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
