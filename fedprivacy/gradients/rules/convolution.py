"""Convolutions in one, two and three dimensions, with any stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients.pieces import Piece, Written, power_of_two, written_or_not
from fedprivacy.gradients.products import align, on_gpu
from fedprivacy.gradients.tape import Tape

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

Padded = tuple[Convolution, tuple[int, ...]]
"""A convolution, and the zero padding that it adds to its inputs itself."""

_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}

_FEW_POSITIONS = 100
_FEW_CHANNELS = 8
_LARGE_WEIGHT = 2**17
"""Limits below or above which patches laid out as a matrix beat a convolution with a group for each record: measured on
one core for twenty layers of 1 to 256 channels and 8 x 8 to 32 x 32 positions; the loser takes up to four times as
long.
"""

_LANES = 16
_COLOURS = 4
"""Numbers of channels: those that a processor's vectors hold, and the most of a layer that reads a picture, where no
gradient goes on. Measured on one core for thirteen layers of 1 to 32 channels; other layers' gradients take up to twice
as long.
"""

_PATCHES_IN_FLIGHT, _ON_GPU = 2**18, 2**26
"""Number of patch entries that are laid out at a time: what stays in a processor's cache, and what fills a GPU."""


def convolution(tape: Tape, name: str, layer: Convolution, inputs: Tensor) -> Tensor:
    """`nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d` on inputs [batch, channels, ...]."""
    padded, padding = padded_inputs(layer, inputs)
    convolve = _CONVOLVE[len(layer.kernel_size)]
    output = convolve(padded, layer.weight, layer.bias, layer.stride, padding, layer.dilation, layer.groups)

    weight, bias = tape.part(layer.weight), tape.part(layer.bias)

    def pieces_of(gradient: Tensor) -> Sequence[Piece | None]:
        read, kept_bytes = padded.detach(), tape.kept_bytes
        written = None if weight is None else convolution_weight((layer, padding), read, gradient, kept_bytes)
        return written, convolution_bias(gradient)

    tape.record_axis(name, inputs)
    tape.watch(name, padded, output, (weight, bias), pieces_of)
    return output


def convolution_weight(layer: Padded, inputs: Tensor, gradient: Tensor, kept_bytes: int) -> Piece:
    """Return the piece of a weight, given the layer's inputs [batch, channels, ...] and its output's gradient."""
    write_out = _by_patches if _as_matrix(layer[0], gradient) else _by_groups

    return written_or_not(partial(write_out, layer), (inputs, gradient), layer[0].weight.nbytes, kept_bytes)


def convolution_bias(gradient: Tensor) -> Piece:
    """Return the piece of a bias, given the gradient [batch, out_channels, ...] of the layer's output."""
    return Written(align(gradient.flatten(2)).sum(2))


def faster_with_channels_last(layer: Convolution) -> bool:
    """Return whether a layer is faster on images whose channels come last: on a CPU, if channels fill its vectors."""
    if not isinstance(layer, nn.Conv2d) or on_gpu(layer.weight):
        return False
    return layer.out_channels % _LANES == 0 and (layer.in_channels % _LANES == 0 or layer.in_channels <= _COLOURS)


def channels_last(images: Tensor) -> Tensor:
    """Lay out images [batch, channels, rows, columns] with the channels of a pixel side by side.

    The strides show this even for a single channel; otherwise torch's convolutions would put output channels first.
    """
    _, channels, rows, columns = images.shape
    strides = (rows * columns * channels, 1, columns * channels, channels)
    return images.contiguous(memory_format=torch.channels_last).as_strided(images.shape, strides)


def padded_inputs(layer: Convolution, inputs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Pad the inputs where the convolution itself cannot; return them and the remaining zero padding."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return inputs, layer.padding
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    return padded, (0,) * len(layer.kernel_size)


def _as_matrix(layer: Convolution, output: Tensor) -> bool:
    """Return whether to lay out patches as a matrix."""
    if not isinstance(layer, nn.Conv2d) or layer.groups > 1 or layer.dilation != (1, 1):
        return False
    few_positions = output.shape[2] * output.shape[3] <= _FEW_POSITIONS
    return few_positions or layer.in_channels < _FEW_CHANNELS or layer.weight.numel() >= _LARGE_WEIGHT


def _by_patches(padded: Padded, inputs: Tensor, gradient: Tensor) -> Written:
    """Compute weight gradients as products of output gradients and patches, which are copied in the longer runs."""
    layer, _ = padded
    records, out_channels, *positions = gradient.shape
    by_pixel = layer.stride[1] == 1 and positions[1] > layer.kernel_size[1] * layer.in_channels
    patches = (_pixel_by_pixel if by_pixel else _patch_by_patch)(padded, inputs, positions)
    gradients = _by_position(gradient)
    written = gradient.new_empty(records, out_channels, layer.weight[0].numel())
    chunk = max(1, _PATCHES_IN_FLIGHT // patches[0].numel())
    if on_gpu(inputs):
        chunk = power_of_two(_ON_GPU // patches[0].numel())  # in a chunk of its own size a row would have other bits
    scratch = gradient.new_empty(min(chunk, records), *patches.shape[1:])
    for start in range(0, records, chunk):
        some = slice(start, start + chunk)
        copied = scratch[: records - start].copy_(patches[some])
        matrix = copied.flatten(1, 3).flatten(2).transpose(1, 2) if by_pixel else copied.flatten(1, 2).flatten(2)
        torch.bmm(gradients[some], matrix, out=written[some])
    if by_pixel:
        return Written(written.view(records, *layer.weight.shape))
    return Written(written.view(records, out_channels, *layer.kernel_size, -1), axes=(0, 3, 1, 2))


def _pixel_by_pixel(padded: Padded, inputs: Tensor, positions: Sequence[int]) -> Tensor:
    """Make overlapping views [batch, channels, height, width, *positions]; a row's positions are adjacent in memory."""
    layer, _ = padded
    framed = _pad(padded, inputs).contiguous()
    record, channel, row, column = framed.stride()
    shape = (*framed.shape[:2], *layer.kernel_size, *positions)
    return framed.as_strided(shape, (record, channel, row, column, row * layer.stride[0], column * layer.stride[1]))


def _patch_by_patch(padded: Padded, inputs: Tensor, positions: Sequence[int]) -> Tensor:
    """Make overlapping views [batch, *positions, height, width, channels]: neighbours in memory are a patch's row."""
    layer, _ = padded
    pixels = _pad(padded, inputs).permute(0, 2, 3, 1).contiguous()
    record, row, column, channel = pixels.stride()
    shape = (pixels.shape[0], *positions, *layer.kernel_size, pixels.shape[3])
    return pixels.as_strided(shape, (record, row * layer.stride[0], column * layer.stride[1], row, column, channel))


def _pad(padded: Padded, inputs: Tensor) -> Tensor:
    """Surround the inputs [batch, channels, rows, columns] with the padding zeros."""
    above, left = padded[1]
    return functional.pad(inputs, (left, left, above, above)) if above or left else inputs


def _by_position(gradient: Tensor) -> Tensor:
    """Reshape a gradient [batch, out, rows, columns] to [batch, out, positions]; no copy if channels come last."""
    if gradient.is_contiguous():
        return gradient.flatten(2)
    return gradient.permute(0, 2, 3, 1).flatten(1, 2).transpose(1, 2)


def _by_groups(padded: Padded, inputs: Tensor, gradient: Tensor) -> Written:
    """Compute weight gradients by one convolution with a group for each record (Rochette et al. 2019)."""
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
