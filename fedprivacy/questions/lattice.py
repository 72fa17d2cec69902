"""Numbers as whole steps: bounded numbers of records, rounded so that their sums are exact.

Each function maps a record's own number and public bounds to whole numbers, element by element: no record affects
another. A number too far beyond narrow bounds for a float becomes infinite meanwhile, and is clipped like the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.question import Totals

STEPS = 2**20
"""Number of whole steps in a one: in a counted record, and from the middle of a bounded number to either bound.

Rounding to steps changes a mean by less than a millionth, and rounding the noise does not change its error.
"""

Values = NDArray[np.float64]


def centred(values: Values, low: float, high: float) -> Values:
    """Scale numbers to -1, at `low`, to 1, at `high`; those beyond are moved to the nearer bound; NaN stays NaN."""
    half = high / 2.0 - low / 2.0
    return np.asarray(np.clip((values - (low / 2.0 + high / 2.0)) / half, -1.0, 1.0))


def in_steps(values: Values, steps: int = STEPS) -> Totals:
    """Round numbers from -1 to 1 to the nearest whole steps, from -`steps` to `steps`."""
    return np.rint(values * steps).astype(np.int64)


def interval(values: Values, low: float, high: float, count: int) -> Totals:
    """Return the number, from 0, of the equally wide interval that holds each number; NaN is left out."""
    known = values[~np.isnan(values)]
    places = np.floor((centred(known, low, high) + 1.0) * (count / 2.0)).astype(np.int64)
    return np.minimum(places, count - 1)
