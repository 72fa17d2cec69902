"""Gaussian noise from a keystream, with tails that reach as far as a Gaussian's do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedprivacy.keystream import Keystream, Position, Purpose


def standard_normal(keystream: Keystream, position: Position, count: int) -> NDArray[np.float64]:
    """Draw `count` independent N(0, 1) values by the Box-Muller transform (Box and Muller 1958), in float64.

    The radius comes from a 64-bit uniform, so values beyond 9 standard deviations occur as often as they should;
    generators with 24-bit uniforms end at 5.8. The values are floating-point numbers: adding them to a float leaves a
    fingerprint in the last bits (Mironov 2012), which only a lattice removes.
    """
    half = (count + 1) // 2
    bits = keystream.bits(Purpose.NOISE, position, 2 * half)
    radius = np.sqrt(-2.0 * np.log((bits[:half].astype(np.float64) + 0.5) * 2.0**-64))
    angle = (2.0 * np.pi * 2.0**-53) * (bits[half:] >> np.uint64(11)).astype(np.float64)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
