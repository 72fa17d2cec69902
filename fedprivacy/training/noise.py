"""Gaussian noise on a lattice, from a keystream.

A Gaussian drawn in floating point and added to a float leaves a fingerprint in the last bits: some values can be
reached from one shard and not from its neighbour (Mironov 2012). Here the sum is rounded to whole steps of a public
lattice and receives a whole number of steps of noise, so that which values can be reached does not depend on the sum,
but for those that are farther from it than the longest draw.

The Gaussians come from rectangles of equal area under the density: one 64-bit word chooses the rectangle and the place
in it. What lies outside of all of them, one draw in a thousand, is drawn by rejection (Marsaglia, MacLaren and Bray
1964; the rectangles are stacked as in the ziggurat, McFarland 2016). Tails reach beyond 13 standard deviations;
generators with 24-bit uniforms, such as `torch.normal`, end at 5.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy._support.spans import spanned
from fedprivacy.training.keystream import Reader

LATTICE_ALLOWANCE = 2.0**-13
"""By how much rounding to the lattice may move the sums of neighbouring shards apart, in clipping norms."""

LARGEST_SUM = 2.0**50
"""Where a coordinate of the sum saturates, in steps of the lattice."""

_CENTRE = 1.5 * 2.0**52
"""Between 2^52 and 2^53, float64 holds whole numbers only: what is added to this many steps is rounded to steps."""

Draws = NDArray[np.float64]
Places = NDArray[np.intp]


def lattice_step(clipping_norm: float, dimension: int) -> float:
    """The largest power of two whose lattice adds at most `LATTICE_ALLOWANCE` to the sensitivity, relative.

    Rounding changes the difference of two sums by at most one step in each coordinate: sqrt(dimension) steps in
    Euclidean norm. A power of two makes going to steps and back exact. The dimension is public.
    """
    widest = LATTICE_ALLOWANCE * clipping_norm / math.sqrt(max(dimension, 1))
    return math.ldexp(0.5, math.frexp(widest)[1])


@spanned("noise")
def add_lattice_noise(
    total: Tensor, scale: float, step: float, read: Reader, dtype: torch.dtype | None = None
) -> Tensor:
    """Round `total` to the lattice and add Gaussian noise that is rounded to the lattice too.

    Formal guarantee: let R(x) be x in whole steps, each coordinate limited to +-`LARGEST_SUM`. The result is a
    post-processing of R(total) + Z with Z ~ N(0, (scale / step)^2 I): the sum is rounded before noise is added, and
    R + Z is rounded once, by a rule that knows nothing else. Totals that differ by at most C in Euclidean norm differ
    by at most C / step + sqrt(d) after R; the limit only brings them closer.

    The result is whole steps as long as Z stays below 2^50, so up to scale / step = 2^46 (noise multiplier 1e4, 1e11
    parameters), and whole multiples of two or more steps beyond. Rounding it to a shorter type keeps that.

    The guarantee is for an exact Gaussian; this one is drawn to 52 bits.

    Args:
        total: the sum, of any shape, on any device. Entries that are not finite count as zero.
        scale: standard deviation of the noise.
        step: spacing of the lattice, a power of two.
        read: the words of this draw; never those of another release.
        dtype: of the result; None: that of `total`.

    Returns:
        A new tensor on the device of `total`.
    """
    sums = total.detach().to("cpu", torch.promote_types(total.dtype, torch.float32)).contiguous()
    released = torch.empty(sums.shape, dtype=torch.promote_types(dtype or total.dtype, torch.float32))
    source, target = sums.numpy().reshape(-1), released.numpy().reshape(-1)

    def release(block: range) -> Places:
        """Release a block, but for the noise outside of the rectangles; returns where that is."""
        outside = []
        for where, draws, missed in _inside(block, scale, read.starting_at(block.start)):
            target[where] = _in_whole_steps(source[where], draws, step)
            outside.append(missed)
        return np.concatenate(outside)

    outside = _by_threads(release, source.size)
    if outside.size:
        draws = scale * _outside(outside.size, read.starting_at(source.size))
        target[outside] = _in_whole_steps(source[outside], draws, step)
    return released.to(total.device, dtype or total.dtype)


def _by_threads(release: Callable[[range], Places], count: int) -> Places:
    """Release `count` coordinates in blocks, by as many threads as torch has: numpy and the cipher let them run."""
    blocks = [range(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK)]
    threads = min(torch.get_num_threads(), len(blocks))
    if threads <= 1:
        return np.concatenate([np.empty(0, dtype=np.intp), *map(release, blocks)])
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(release, blocks)))


def _in_whole_steps(sums: NDArray[np.floating], draws: Draws, step: float) -> Draws:
    """Sums rounded to whole steps, plus draws rounded to whole steps."""
    released = _limited(sums, LARGEST_SUM * step).astype(np.float64)
    released += _CENTRE * step  # rounds the sum, whatever the noise
    released += draws  # rounds the noise
    released -= _CENTRE * step
    return released


def _limited(sums: NDArray[np.floating], limit: float) -> NDArray[np.floating]:
    """Sums within +-`limit`, zero where they are not finite."""
    if -limit <= sums.min() and sums.max() <= limit:  # neither holds if one is NaN
        return sums
    finite: NDArray[np.floating] = np.nan_to_num(sums, nan=0.0, posinf=0.0, neginf=0.0)
    return finite.clip(-limit, limit)


# Half of exp(-x^2 / 2), cut into layers. Layer i holds a rectangle from the axis to _EDGES[i], where the density meets
# the layer's ceiling _FLOORS[i + 1]. Each rectangle has 1 / _LAYERS of the whole area, and all but a few find room.
_LAYERS = 4096
_RECTANGLES = _LAYERS - 4
_CHUNK = 2**15  # draws at a time: their arrays stay in the processor's cache
_BLOCK = 2**18  # draws that one thread makes: enough to be worth a thread's start


def _stack() -> tuple[Draws, Draws]:
    """Edges and floors of the rectangles, from the widest up; above them a layer up to the peak."""
    area = math.sqrt(math.pi / 2.0) / _LAYERS
    edges, floors = [math.sqrt(2.0 * math.log(_LAYERS))], [0.0]
    for layer in range(_RECTANGLES):
        start = 2.0 * edges[-1] - edges[-2] if layer > 1 else edges[-1]
        edges.append(_edge(start, floors[-1], area))
        floors.append(floors[-1] + area / edges[-1])
    return np.array([*edges[1:], 0.0]), np.array([*floors, 1.0])


def _edge(x: float, floor: float, area: float) -> float:
    """Where x (exp(-x^2 / 2) - floor) = area, to the right of the maximum, by Newton's method."""
    change = x
    while abs(change) > 1e-9 * x:  # squared by the last turn: below the precision of float64
        density = math.exp(-0.5 * x * x)
        change = (x * (density - floor) - area) / (density - floor - x * x * density)
        x -= change
    return x


_EDGES, _FLOORS = _stack()
_WIDTHS = np.append(_EDGES[:-1], np.zeros(_LAYERS - _RECTANGLES)) * 2.0**-63
_TAIL = float(_EDGES[0])
_TAIL_AREA = math.sqrt(math.pi / 2.0) * math.erfc(_TAIL / math.sqrt(2.0))
_OUTSIDE_AREAS = np.cumsum([_TAIL_AREA, *(-np.diff(_EDGES) * np.diff(_FLOORS[1:]))])  # then a box beside each rectangle


def _inside(block: range, scale: float, read: Reader) -> Iterator[tuple[slice, Draws, Places]]:
    """Draw values of N(0, scale^2) from the rectangles for a block of coordinates, one word for each.

    In pieces: where they belong, the values, and where they fell outside of all rectangles; there they are zero.
    """
    widths = scale * _WIDTHS
    size = min(len(block), _CHUNK)
    all_words, all_layers, all_draws = np.empty(size, dtype=np.uint64), np.empty(size, dtype=np.int64), np.empty(size)
    for start in range(block.start, block.stop, _CHUNK):
        left = slice(block.stop - start)
        words, layer, draws = all_words[left], all_layers[left], all_draws[left]
        signed = read(words).view(np.int64)
        np.bitwise_and(signed, _LAYERS - 1, out=layer)
        np.copyto(draws, signed)
        draws *= widths.take(layer, out=words.view(np.float64), mode="wrap")  # the words have served
        missed = (layer >= _RECTANGLES).nonzero()[0]
        yield slice(start, start + draws.size), draws, start + missed


def _outside(count: int, read: Reader) -> Draws:
    """Draw `count` values from what N(0, 1) has outside of the rectangles, by rejection from boxes and the tail."""
    draws = np.empty(0)
    while draws.size < count:
        candidates = 2 * (count - draws.size) + 8  # a little more than half of them are kept
        box, across, up = _uniforms(3 * candidates, read).reshape(3, candidates)
        layer = np.searchsorted(_OUTSIDE_AREAS, _OUTSIDE_AREAS[-1] * box)
        x = _EDGES[layer] + (_EDGES[layer - 1] - _EDGES[layer]) * across
        kept = _FLOORS[layer] + (_FLOORS[layer + 1] - _FLOORS[layer]) * up < np.exp(-0.5 * x * x)
        tail = (layer == 0).nonzero()[0]
        if tail.size:
            x[tail] = _tail(tail.size, read)
            kept[tail] = True
        draws = np.append(draws, x[kept])
    return np.copysign(draws[:count], _words(count, read).view(np.int64))


def _tail(count: int, read: Reader) -> Draws:
    """Draw `count` values from N(0, 1) given that they exceed `_TAIL` (Marsaglia 1964)."""
    draws = np.empty(0)
    while draws.size < count:
        across, up = -np.log(_uniforms(2 * (count + 8), read).reshape(2, -1))
        excess = across / _TAIL
        draws = np.append(draws, _TAIL + excess[2.0 * up > excess * excess])
    return draws[:count]


def _uniforms(count: int, read: Reader) -> Draws:
    """Draw `count` uniforms from (0, 1], the smallest 2^-65."""
    return (_words(count, read).astype(np.float64) + 0.5) * 2.0**-64


def _words(count: int, read: Reader) -> NDArray[np.uint64]:
    return read(np.empty(count, dtype=np.uint64))
