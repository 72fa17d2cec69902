"""Numbers as whole steps: what a record says of a bounded number, so that sums of records are exact.

Each function maps a record's own number and public bounds to whole numbers, element by element: no record moves what
another one becomes. What is too far beyond narrow bounds for a float is infinite on its way, and moved like the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.question import Totals

STEPS = 2**20
"""Whole steps of a one: of a record that is counted, and from the middle of a bounded number to either bound.

Rounding to them moves no mean by a millionth, and rounding the noise to them no error."""

Values = NDArray[np.float64]


def centred(values: Values, low: float, high: float) -> Values:
    """Numbers between -1, at `low`, and 1, at `high`: those beyond are moved to the nearer bound; NaN stays NaN."""
    half = high / 2.0 - low / 2.0
    return np.asarray(np.clip((values - (low / 2.0 + high / 2.0)) / half, -1.0, 1.0))


def in_steps(values: Values, steps: int = STEPS) -> Totals:
    """Numbers from -1 to 1 as the nearest whole steps, from -`steps` to `steps`."""
    return np.rint(values * steps).astype(np.int64)


def interval(values: Values, low: float, high: float, count: int) -> Totals:
    """In which of `count` equally wide intervals each number is, counted from 0; numbers that are NaN are left out."""
    known = values[~np.isnan(values)]
    places = np.floor((centred(known, low, high) + 1.0) * (count / 2.0)).astype(np.int64)
    return np.minimum(places, count - 1)
