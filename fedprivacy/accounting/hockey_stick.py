"""The hockey stick's transform: what turns that of a privacy loss into delta at every epsilon."""

from __future__ import annotations

import math

import numpy as np

from fedprivacy.accounting.arrays import ComplexArray, FloatArray


def transform(tilt: float, step: float, frequencies: FloatArray) -> ComplexArray:
    """sum_{d>=1} (1 - e^(-d h)) e^(d (i w - t h)) at angular frequencies w; never larger than at w = 0.

    Args:
        tilt: t h, without unit.
        step: h, in nats.
        frequencies: w, in radians for each grid point, shape [frequencies].
    """
    # With E = e^(i w - t h) - 1 the sum is -(E + 1) / (E (1 - E / (e^h - 1))); Re E < 0: the last factor is accurate.
    exponent = 1j * frequencies - tilt
    one_less = np.expm1(exponent)
    return np.asarray(-np.exp(exponent) / (one_less * (1.0 + one_less * math.exp(-step) / math.expm1(-step))))
