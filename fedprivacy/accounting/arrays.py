"""The arrays of this package, by what they hold, and how to look something up in sorted ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
ComplexArray = NDArray[np.complex128]


def located(keys: IntArray, wanted: IntArray) -> tuple[IntArray, BoolArray]:
    """Where each wanted key stands, or would stand, among increasing keys, and whether it does; shape of `wanted`."""
    places = np.searchsorted(keys, wanted)
    known = np.zeros(wanted.size, dtype=np.bool_)
    inside = places < keys.size
    known[inside] = keys[places[inside]] == wanted[inside]
    return places, known
