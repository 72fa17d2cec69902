"""Gaussian noise on a lattice, from a keystream.

A Gaussian drawn in floating point and added to a float leaves a fingerprint in the last bits: some values can be
reached from one shard and not from its neighbour (Mironov 2012). Here the sum is rounded to whole steps of a public
lattice and receives a whole number of steps of noise, so that which values can be reached does not depend on the sum,
but for those that are farther from it than the longest draw.

Draws come from rectangles of equal area under the density. One 64-bit word of the keystream chooses the rectangle and
the place in it. What lies outside of all of them, one draw in a thousand, is drawn by rejection (Marsaglia, MacLaren
and Bray 1964; the rectangles are stacked as in the ziggurat, McFarland 2016). Tails reach beyond 13 standard
deviations; generators with 24-bit uniforms, such as `torch.normal`, end at 5.8.

On a GPU the sum stays there: the host encrypts counters and draws what falls outside of the rectangles, for which no
sum is needed, and the GPU turns words into draws and adds them. Integer and float64 arithmetic round there as here, so
the noise is the same function of key and position; each GPU shows that on made-up sums first.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy._support.native import out_of_memory
from fedprivacy.mechanisms.fused import WhenWorth
from fedprivacy.mechanisms.keystream import Reader, Readers, Words

Draws = NDArray[np.float64]
Places = NDArray[np.intp]

# Half of exp(-x^2 / 2), cut into layers. Layer i holds a rectangle from the axis to EDGES[i], where the density meets
# the layer's ceiling FLOORS[i + 1]. Each rectangle has 1 / LAYERS of the whole area, and all but a few find room.
LAYERS = 4096
RECTANGLES = LAYERS - 4


def _stack() -> tuple[Draws, Draws]:
    """Return edges and floors of the rectangles, from the widest up; above them is a layer up to the peak."""
    area = math.sqrt(math.pi / 2.0) / LAYERS
    edges, floors = [math.sqrt(2.0 * math.log(LAYERS))], [0.0]
    for layer in range(RECTANGLES):
        start = 2.0 * edges[-1] - edges[-2] if layer > 1 else edges[-1]
        edges.append(_edge(start, floors[-1], area))
        floors.append(floors[-1] + area / edges[-1])
    return np.array([*edges[1:], 0.0]), np.array([*floors, 1.0])


def _edge(x: float, floor: float, area: float) -> float:
    """Solve x (exp(-x^2 / 2) - floor) = area for x, to the right of the maximum, by Newton's method."""
    change = x
    while abs(change) > 1e-9 * x:  # squared by the last turn: below the precision of float64
        density = math.exp(-0.5 * x * x)
        change = (x * (density - floor) - area) / (density - floor - x * x * density)
        x -= change
    return x


EDGES, FLOORS = _stack()
WIDTHS = np.append(EDGES[:-1], np.zeros(LAYERS - RECTANGLES)) * 2.0**-63
TAIL = float(EDGES[0])
TAIL_AREA = math.exp(-0.5 * TAIL**2) / TAIL  # below an exponential that bounds the density there
_OUTSIDE_AREAS = np.cumsum([TAIL_AREA, *(-np.diff(EDGES) * np.diff(FLOORS[1:]))])  # then a box beside each rectangle

_FIRST_TRY = np.uint64(2**63)  # the number of the first block that no coordinate's first word lies in
_MOST_TRIES, _BLOCKS_A_TRY = np.uint64(2**8), np.uint64(2)  # each is refused with a probability below 1/2
_BLOCKS_AT_ONCE = np.arange(4 * _BLOCKS_A_TRY, dtype=np.uint64)  # most coordinates need no more


def from_rectangles(words: Words, widths: Draws, layers: Places, draws: Draws, scales: Draws | None = None) -> None:
    """Fill draws by one word each; those that fall outside of all rectangles are zero, for `outside` to find.

    Args:
        words: input.
        widths: widths of the rectangles, each times 2^-63.
        layers: output: the layer of each word.
        draws: output.
        scales: factor of the width of each draw, broadcast to the draws; None: 1.
    """
    signed = words.view(np.int64)
    np.bitwise_and(signed, LAYERS - 1, out=layers)
    widths.take(layers, out=draws, mode="clip")
    if scales is not None:
        draws *= scales
    np.multiply(signed, draws, out=draws)


def outside(layers: Places) -> Places:
    """Return the places of the layers, shape [n], that have no rectangle."""
    return (layers >= RECTANGLES).nonzero()[0]


def draw_outside(places: Places, blocks: Callable[[Places, Words], Words]) -> Draws:
    """Draw for coordinates from the part of N(0, 1) outside of the rectangles, by rejection from boxes and the tail.

    Args:
        places: the coordinates, shape [n].
        blocks: (indices of coordinates, [some]; numbers of blocks, [some, more]) -> their words, [some, more, 2].
            Every try of every coordinate has blocks of its own.
    """
    draws, left = np.empty(len(places)), np.arange(len(places))
    numbered = _FIRST_TRY + _MOST_TRIES * _BLOCKS_A_TRY * places.astype(np.uint64)
    while left.size:
        words = blocks(left, numbered[left, np.newaxis] + _BLOCKS_AT_ONCE)
        drawn, kept = (each.reshape(len(left), -1) for each in try_draws(words.reshape(-1, 4).T))
        first, found = kept.argmax(1), kept.any(1)
        draws[left[found]] = drawn[found, first[found]]
        left = left[~found]
        numbered += np.uint64(_BLOCKS_AT_ONCE.size)
    return draws


def try_draws(words: Words) -> tuple[Draws, NDArray[np.bool_]]:
    """Try one draw for each column of four words, shape [4, n]; return the draws and a mask of those that are kept."""
    box, across, up = (words[:3].astype(np.float64) + 0.5) * 2.0**-64  # from (0, 1], the smallest 2^-65
    layer = np.searchsorted(_OUTSIDE_AREAS, _OUTSIDE_AREAS[-1] * box)
    x = EDGES[layer] + (EDGES[layer - 1] - EDGES[layer]) * across
    kept = FLOORS[layer] + (FLOORS[layer + 1] - FLOORS[layer]) * up < np.exp(-0.5 * x * x)
    tail = (layer == 0).nonzero()[0]
    if tail.size:  # Marsaglia 1964
        excess = -np.log(across[tail]) / TAIL
        x[tail], kept[tail] = TAIL + excess, -2.0 * np.log(up[tail]) > excess * excess
    return np.copysign(x, words[3].view(np.int64)), kept


log = logging.getLogger(__name__)

LATTICE_ALLOWANCE = 2.0**-13
"""Largest additional distance between the sums of neighbouring shards by rounding to the lattice, in clipping norms."""

LARGEST_SUM = 2.0**50
"""Absolute value at which a coordinate of the sum saturates, in steps of the lattice."""

_CENTRE = 1.5 * 2.0**52
"""Number of steps whose addition rounds to steps: between 2^52 and 2^53, float64 holds whole numbers only."""

_COMPILED = WhenWorth()


def library() -> str:
    """Return the name of the library that draws this process's noise now: numpy, or numba once that pays."""
    return "numba" if _COMPILED.compiled else "numpy"


def lattice_step(clipping_norm: float, dimension: int) -> float:
    """Return the largest power of two whose lattice adds at most `LATTICE_ALLOWANCE` to the sensitivity, relative.

    Rounding changes the difference of two sums by at most one step in each coordinate: sqrt(dimension) steps in
    Euclidean norm. A power of two makes going to steps and back exact. The dimension is public.
    """
    widest = LATTICE_ALLOWANCE * clipping_norm / math.sqrt(max(dimension, 1))
    return math.ldexp(0.5, math.frexp(widest)[1])


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
        read: reader of the words of this draw; never those of another release.
        dtype: type of the result; None: that of `total`.

    Returns:
        A new tensor on the device of `total`.
    """
    if total.is_cuda:
        try:
            if computes_the_same_bits(total.device):
                return add_lattice_noise_on_device(total, scale, step, read, dtype)
        except Exception as error:
            if not out_of_memory(error):
                raise
            log.debug("Noise is added on the host: %s has no memory left for it.", total.device)
    return _add_on_host(total, scale, step, read, dtype)


def _add_on_host(total: Tensor, scale: float, step: float, read: Reader, dtype: torch.dtype | None) -> Tensor:
    sums = total.detach().to("cpu", torch.promote_types(total.dtype, torch.float32)).contiguous()
    released = torch.empty(sums.shape, dtype=torch.promote_types(dtype or total.dtype, torch.float32))
    source, target = _limit(sums, LARGEST_SUM * step).reshape(-1), released.numpy().reshape(-1)
    usual = source.dtype == np.float64 and target.dtype == np.float32
    one_pass = _COMPILED.next(source.size) if usual else None
    widths = WIDTHS * scale

    def release(block: range) -> Places:
        """Release a block, except for draws outside of the rectangles; return their places."""
        words, layers, draws = _SCRATCH.arrays
        missed, reading = list[Places](), read.starting_at(block.start)
        for start in range(block.start, block.stop, _CHUNK):
            where, left = slice(start, min(start + _CHUNK, block.stop)), slice(min(_CHUNK, block.stop - start))
            drawn = reading(words[left])
            if one_pass is not None:
                steps = source[where], _CENTRE * step, target[where]
                found = layers[: one_pass(drawn.view(np.int64), widths, RECTANGLES, *steps, layers)]
            else:
                from_rectangles(drawn, widths, layers[left], draws[left])
                found = outside(layers[left])
                _in_whole_steps(source[where], draws[left], step, target[where], drawn.view(np.float64))
            missed.append(start + found)
        return np.concatenate(missed)

    missed = _by_threads(release, range(source.size))
    if missed.size:
        draws = scale * draw_outside(missed, lambda _, numbers: read.blocks(numbers))
        target[missed] = _in_whole_steps(source[missed], draws, step)
    return released.to(total.device, dtype or total.dtype)


def add_lattice_noise_on_device(
    total: Tensor, scale: float, step: float, read: Reader, dtype: torch.dtype | None = None
) -> Tensor:
    """Do what `add_lattice_noise` does to a floating-point sum, to the bit, on its own device, which has float64.

    The host draws the words of the noise while the device is busy, and waits for it only after `_ON_DEVICE` of them.
    """
    sums, limit, centre = total.detach().reshape(-1), LARGEST_SUM * step, _CENTRE * step
    released = sums.new_empty(sums.shape, dtype=torch.promote_types(dtype or total.dtype, torch.float32))
    widths = _widths_on(sums.device, scale)
    for start in range(0, sums.numel(), _ON_DEVICE):
        where = slice(start, min(start + _ON_DEVICE, sums.numel()))
        words, missed = _words(read, range(where.start, where.stop), sums.device)
        beside = scale * draw_outside(missed, lambda _, numbers: read.blocks(numbers))
        if sums.is_cuda and start:  # else the words of a large model would all wait in the host's memory
            torch.cuda.current_stream(sums.device).synchronize()
        signed = words.to(sums.device, non_blocking=True)
        draws = widths[signed & (LAYERS - 1)].mul_(signed)
        if missed.size:
            draws[_copied_to(sums.device, missed - start)] = _copied_to(sums.device, beside)
        steps = sums[where].double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp_(-limit, limit)
        torch.sub(steps.add_(centre).add_(draws), centre, out=released[where])
        del words, signed, draws, steps  # before there are new ones
    return released.reshape(total.shape).to(dtype or total.dtype)


@functools.cache
def computes_the_same_bits(device: torch.device) -> bool:
    """Return whether a device's noise is the host's, bit for bit; if not, warn that the host adds it. Tried once.

    On a fine lattice a release in float64 shows the last bits of a draw, and one in float32 the rounding to float32.
    """
    sums = torch.randn(2**14, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums[:4] = torch.tensor([math.nan, math.inf, -math.inf, 2.0**52])
    read, step = Reader(bytes(32)), 2.0**-44
    for kind, released_in in ((torch.float64, torch.float64), (torch.float64, torch.float32), (torch.float32, None)):
        given = (2.0**4 * sums).to(kind)
        there = add_lattice_noise_on_device(given.to(device), 0.7, step, read, released_in)
        if not torch.equal(there.cpu(), _add_on_host(given, 0.7, step, read, released_in)):
            log.warning("Noise is added on the host: %s has other bits.", device)
            return False
    return True


@functools.lru_cache(maxsize=64)
def _widths_on(device: torch.device, scale: float) -> Tensor:
    return torch.from_numpy(WIDTHS * scale).to(device)


def _copied_to(device: torch.device, array: NDArray[np.generic]) -> Tensor:
    """Copy an array to a device without waiting for a busy GPU."""
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _words(read: Reader, places: range, device: torch.device) -> tuple[Tensor, Places]:
    """Return the words of these places, int64, on the host, and the places whose word chooses no rectangle."""
    words = torch.empty(len(places), dtype=torch.int64, pin_memory=device.type == "cuda")
    target = words.numpy()

    def draw(block: range) -> Places:
        missed, reading = list[Places](), read.starting_at(block.start)
        for start in range(block.start, block.stop, _CHUNK):
            drawn = target[start - places.start : min(start + _CHUNK, block.stop) - places.start]
            reading(drawn.view(np.uint64))
            missed.append(start + outside(drawn & (LAYERS - 1)))
        return np.concatenate(missed)

    return words, _by_threads(draw, places)


def add_lattice_noise_by_row(totals: Tensor, scales: Draws, steps: Draws, read: Readers) -> Tensor:
    """Apply `add_lattice_noise` to each row, with the bits of each row's own reader: many releases at once.

    Formal guarantee: that of `add_lattice_noise`, for each row by itself. No row enters into another.

    Args:
        totals: the sums, shape [rows, d], on any device.
        scales, steps: scale and step of each row, shape [rows].
        read: readers of the words of each row's draw.

    Returns:
        A new tensor on the device of `totals`, float32.
    """
    sums = totals.detach().to("cpu", torch.promote_types(totals.dtype, torch.float32)).contiguous()
    source, released = _limit(sums, LARGEST_SUM * steps[:, np.newaxis]), torch.empty(sums.shape, dtype=torch.float32)
    target, missed = released.numpy(), [np.empty(0, dtype=np.intp)]
    width = source.shape[1]
    rows_at_once = max(_CHUNK // max(width, 1), 1)
    for start in range(0, len(source), rows_at_once):
        rows = slice(start, min(start + rows_at_once, len(source)))
        words = read.words(rows, width)
        layers, draws = np.empty(words.shape, dtype=np.intp), np.empty(words.shape)
        from_rectangles(words, WIDTHS, layers, draws, scales[rows, np.newaxis])
        _in_whole_steps(source[rows], draws, steps[rows, np.newaxis], target[rows], words.view(np.float64))
        missed.append(start * width + outside(layers.reshape(-1)))
    row, place = np.divmod(np.concatenate(missed), max(width, 1))
    beside = scales[row] * draw_outside(place, lambda some, numbers: read.blocks(row[some], numbers))
    target[row, place] = _in_whole_steps(source[row, place], beside, steps[row])
    return released.to(totals.device)


def _by_threads(release: Callable[[range], Places], places: range) -> Places:
    """Release coordinates in blocks, by as many threads as torch has: numpy and the cipher let them run."""
    blocks = [places[start : start + _BLOCK] for start in range(0, len(places), _BLOCK)]
    threads = min(torch.get_num_threads(), len(blocks))
    if threads <= 1:
        return np.concatenate([np.empty(0, dtype=np.intp), *map(release, blocks)])
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(release, blocks)))


def _in_whole_steps(
    sums: NDArray[np.floating],
    draws: Draws,
    step: float | Draws,
    released: NDArray[np.floating] | None = None,
    scratch: Draws | None = None,
) -> NDArray[np.floating]:
    """Add sums within the lattice's range and draws, each rounded to whole steps; None: into a new array."""
    steps: Draws = np.add(sums, _CENTRE * step, out=scratch, dtype=np.float64)  # rounds the sum
    steps += draws  # rounds the noise
    result: NDArray[np.floating] = np.subtract(steps, _CENTRE * step, out=released, casting="same_kind")
    return result


def _limit(sums: Tensor, limit: float | Draws) -> NDArray[np.floating]:
    """Return sums clamped to +-`limit`, and zero where they are not finite; those that need neither are no copy."""
    given: NDArray[np.floating] = sums.numpy()
    least = limit if isinstance(limit, float) else limit.min(initial=np.inf)
    if given.size == 0 or (-least <= given.min() and given.max() <= least):  # neither holds if one is NaN
        return given
    finite: NDArray[np.floating] = np.nan_to_num(given, nan=0.0, posinf=0.0, neginf=0.0)
    return finite.clip(-limit, limit)


_CHUNK = 2**15  # draws at a time: their arrays stay in the processor's cache
_BLOCK = 2**18  # draws that one thread makes: enough to be worth a thread's start
_ON_DEVICE = 2**21  # draws that a device makes at a time, in 64 MB beside sum and result


class _Scratch(threading.local):
    """Arrays that each thread keeps, because new ones cost as much time as drawing: words, layers, draws."""

    def __init__(self) -> None:
        self.arrays = np.empty(_CHUNK, dtype=np.uint64), np.empty(_CHUNK, dtype=np.intp), np.empty(_CHUNK)


_SCRATCH = _Scratch()
