"""Gaussians from a keystream's words: of rectangles of equal area under the density.

One 64-bit word chooses the rectangle and the place in it. What lies outside of all of them, one draw in a thousand, is
drawn by rejection (Marsaglia, MacLaren and Bray 1964; the rectangles are stacked as in the ziggurat, McFarland 2016).
Tails reach beyond 13 standard deviations; generators with 24-bit uniforms, such as `torch.normal`, end at 5.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedprivacy.mechanisms.keystream import Words

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


def drawn_outside(places: Places, blocks: Callable[[Places, Words], Words]) -> Draws:
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
        drawn, kept = (each.reshape(len(left), -1) for each in tried(words.reshape(-1, 4).T))
        first, found = kept.argmax(1), kept.any(1)
        draws[left[found]] = drawn[found, first[found]]
        left = left[~found]
        numbered += np.uint64(_BLOCKS_AT_ONCE.size)
    return draws


def tried(words: Words) -> tuple[Draws, NDArray[np.bool_]]:
    """Try one draw for each column of four words, shape [4, n]; return the draws and a mask of those that are kept."""
    box, across, up = _uniforms(words[:3])
    layer = np.searchsorted(_OUTSIDE_AREAS, _OUTSIDE_AREAS[-1] * box)
    x = EDGES[layer] + (EDGES[layer - 1] - EDGES[layer]) * across
    kept = FLOORS[layer] + (FLOORS[layer + 1] - FLOORS[layer]) * up < np.exp(-0.5 * x * x)
    tail = (layer == 0).nonzero()[0]
    if tail.size:  # Marsaglia 1964
        excess = -np.log(across[tail]) / TAIL
        x[tail], kept[tail] = TAIL + excess, -2.0 * np.log(up[tail]) > excess * excess
    return np.copysign(x, words[3].view(np.int64)), kept


def _uniforms(words: Words) -> Draws:
    """Return uniforms from (0, 1], the smallest 2^-65, one for each word."""
    uniforms: Draws = (words.astype(np.float64) + 0.5) * 2.0**-64
    return uniforms
