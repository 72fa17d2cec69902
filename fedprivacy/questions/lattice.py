"""Numbers as whole steps: bounded numbers of records, rounded so that their sums are exact.

Each function maps a record's own number and public bounds to whole numbers, element by element: no record affects
another. A number too far beyond narrow bounds for a float becomes infinite meanwhile, and is clipped like the rest.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

STEPS = 2**20
"""Number of whole steps in a one: in a counted record, and from the middle of a bounded number to either bound.

Rounding to steps changes a mean by less than a millionth, and rounding the noise does not change its error.
"""

Values = NDArray[np.float64]
Totals = NDArray[np.int64]


def centre(values: Values, low: float, high: float) -> Values:
    """Scale numbers to -1, at `low`, to 1, at `high`; those beyond are moved to the nearer bound; NaN stays NaN."""
    half = high / 2.0 - low / 2.0
    return np.asarray(np.clip((values - (low / 2.0 + high / 2.0)) / half, -1.0, 1.0))


def round_to_steps(values: Values, steps: int = STEPS) -> Totals:
    """Round numbers from -1 to 1 to the nearest whole steps, from -`steps` to `steps`."""
    return np.rint(values * steps).astype(np.int64)


@lru_cache(maxsize=32)  # bounded, because the caller chooses the bounds
def edges(low: float, high: float, count: int) -> tuple[list[str], Values]:
    """Divide the numbers from `low` to `high` into equally wide intervals, and write their edges as decimals.

    Inner edges are the very numbers that their texts show: 0.3, not 0.30000000000000004. Where a decimal of 12 digits
    does not divide the width equally (a third), they are rounded by at most a thousandth of it. The outer edges are the
    bounds.

    Returns:
        The texts, and the edges, shape [count + 1]: no two are equal, as `as_bounds` keeps 4096 of them an ulp apart.
    """
    first, last = Fraction(repr(low)), Fraction(repr(high))
    whole = math.lcm(first.denominator, last.denominator) * count
    step = int((last - first) * whole) // count
    # Whole numbers are divided once: sums of floats would miss 0.3, and zero.
    equal = np.array([(int(first * whole) + step * place) / whole for place in range(count + 1)])
    rounding = (high / count - low / count) / 1000.0
    for digits in (12, *range(6, 18)):
        texts = [f"{edge:.{digits}g}" for edge in equal.tolist()]
        rounded = np.array(texts, np.float64)
        rounded[0], rounded[-1] = low, high
        if np.abs(rounded - equal).max() <= (0.0 if digits == 12 else rounding):
            break
    return texts, rounded


def interval(values: Values, low: float, high: float, count: int) -> Totals:
    """Return the number, from 0, of the interval between `edges` that holds each number; NaN is left out.

    An interval holds its lower edge. The first one also holds the numbers below, the last one those from `high` on.
    """
    known = values[~np.isnan(values)]
    ends = edges(low, high, count)[1].copy()
    ends[0], ends[-1] = -np.inf, np.inf
    # Arithmetic finds the interval or the next one, faster than a search; the edges decide.
    places = np.clip((known - low) / ((high - low) / count), 0.0, count - 1.0).astype(np.int64)
    places -= known < ends[places]
    places += known >= ends[places + 1]
    return np.minimum(places, count - 1)
