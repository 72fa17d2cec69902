"""How far attacks on models that learned nothing come, by chance."""

import math

from scipy import stats

CHANCE = stats.norm.isf(0.5e-4)
"""Standard deviations that chance passes once in 10,000 tests."""


def area_band(members: int, others: int) -> float:
    """How far from one half the area under the curve of random scores comes, but for one test in 10,000."""
    return float(CHANCE * math.sqrt((members + others + 1) / (12 * members * others)))
