"""Figures of an answer, each with the error that the noise may cause. All of it is post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 1.959963984540054
"""Number of standard errors from a value to the ends of its 95 % confidence interval."""

ENOUGH = 3.0
"""Number of standard errors that a noisy count must be above zero for a mean or a quantile."""

ENOUGH_FOR_SQUARES = 5.0
"""Number of standard errors that a noisy count must be above zero for deviations, covariances and correlations.

Their intervals are approximate: at a count just above this limit, 7 of 100 releases state an interval without the
noiseless value, and from 10 deviations on 5 or 6 do.
"""


@dataclass(frozen=True, slots=True)
class Noisy:
    """Noisy totals of one question and one group, of one client or the sum of several.

    Attributes:
        totals: noisy totals in whole lattice steps, shape [width].
        deviation: standard deviation of the noise in each total, in lattice steps.
    """

    totals: NDArray[np.float64]
    deviation: float


class Estimate(NamedTuple):
    """One number of an answer.

    Attributes:
        name: name of the number.
        value: the estimate; None: it is lost in the noise.
        error: standard error by the noise, without that of the sample; None if there is no value.
        low, high: 95 % confidence interval of the value without noise.
        group: group of records that it describes; "": all of them.
    """

    name: str
    value: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    group: str = ""

    def within(self, least: float, most: float) -> Estimate:
        """Clip value and interval to a range of possible values; the error stays."""
        if self.value is None or self.low is None or self.high is None:
            return self
        value, low, high = (min(max(end, least), most) for end in (self.value, self.low, self.high))
        return self._replace(value=value, low=low, high=high)

    def mapped(self, rising: Callable[[float], float]) -> Estimate:
        """Apply a rising function to value and interval; the new error is the change by one error."""
        if self.value is None or self.error is None or self.low is None or self.high is None:
            return self
        error = (rising(self.value + self.error) - rising(self.value - self.error)) / 2.0
        return self._replace(value=rising(self.value), error=error, low=rising(self.low), high=rising(self.high))

    @classmethod
    def of(cls, name: str, value: float, error: float) -> Estimate:
        """Make an estimate with a symmetric interval."""
        if not (math.isfinite(value) and math.isfinite(error)):
            return cls(name)
        return cls(name, value, error, value - CONFIDENCE * error, value + CONFIDENCE * error)


Estimator = Callable[..., float]
"""Function of some totals, in the order of their places, that returns a number."""


def ratio(name: str, numerator: float, denominator: float, deviation: float) -> Estimate:
    """Estimate a mean of numbers from -1 to 1 as a ratio of two noisy totals with the same deviation.

    The interval is Fieller's (1954): all ratios r for which numerator - r denominator is not farther from zero than its
    own noise explains. It is exact however few records there are, as long as the denominator is surely above zero
    (`ENOUGH`).
    """
    value, squared = numerator / denominator, (CONFIDENCE * deviation) ** 2
    middle, rest = numerator * denominator, denominator**2 - squared
    reach = math.sqrt(squared * (numerator**2 + rest))
    error = deviation * math.hypot(1.0, min(abs(value), 1.0)) / denominator
    return Estimate(name, value, error, (middle - reach) / rest, (middle + reach) / rest).within(-1.0, 1.0)


def estimated(name: str, estimator: Estimator, noisy: Noisy, places: Sequence[int]) -> Estimate:
    """Estimate a smooth function of noisy totals, with its error by the delta method.

    Slopes are taken over one standard deviation of the noise to each side. The function must extend beyond possible
    values (a variance below zero), so that the interval holds the noiseless value as often as it states.

    Args:
        name: name of the estimate.
        estimator: function of some totals.
        noisy: all totals.
        places: places of the totals that the estimator takes.
    """
    totals = noisy.totals[list(places)].tolist()
    halves = []
    for place, total in enumerate(totals):
        before, after = totals[:place], totals[place + 1 :]
        up, down = (estimator(*before, total + sign * noisy.deviation, *after) for sign in (1.0, -1.0))
        halves.append((up - down) / 2.0)
    return Estimate.of(name, estimator(*totals), math.hypot(*halves))
