"""Bounds on what attacks reach by chance, on models that learned nothing."""

import math

from scipy import stats

CHANCE = stats.norm.isf(0.5e-4)
"""Standard deviations that chance passes once in 10,000 tests."""


def area_band(members: int, others: int) -> float:
    """The distance from one half that the area under a curve of random scores passes in one test of 10,000."""
    return float(CHANCE * math.sqrt((members + others + 1) / (12 * members * others)))
