"""Figures of an answer, each with the error that the noise may cause. All of it is post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.lattice import STEPS

CONFIDENCE = 1.959963984540054
"""Number of standard errors from a value to the ends of its 95 % confidence interval."""

ENOUGH = 3.0
"""Number of standard errors that a noisy count must be above zero for a mean or a quantile."""

ENOUGH_FOR_SQUARES = 5.0
"""Number of standard errors that a noisy count must be above zero for deviations, covariances and correlations.

Their intervals are approximate: they use the delta method.
"""

FAR = 8.0
"""Number of errors from which on it does not matter that a figure would not be told at a lower value."""

ROUNDING = 0.5 / STEPS
"""Largest difference by which a record's number, from -1 to 1, is rounded to whole steps."""

Scores = NDArray[np.float64] | float
"""Normal scores: deviations from a supposed value, in errors."""


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
        error: standard error by the noise, and of a quantile by the width of its intervals; without that of the sample;
            None if there is no value.
        low, high: 95 % confidence interval of the exact value on these records, also where the value is told only
            because of its noise (`conditional_scores`).
        group: group of records that it describes; "": all of them.
    """

    name: str
    value: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    group: str = ""

    def clip(self, least: float, most: float) -> Estimate:
        """Clip value and interval to a range of possible values; the error stays."""
        if self.value is None or self.low is None or self.high is None:
            return self
        value, low, high = (min(max(end, least), most) for end in (self.value, self.low, self.high))
        return self._replace(value=value, low=low, high=high)

    def transform(self, rising: Callable[[float], float]) -> Estimate:
        """Apply a rising function to value and interval.

        The new error is the root mean square of the changes by one error to either side.
        """
        if self.value is None or self.error is None or self.low is None or self.high is None:
            return self
        less, value, more = (rising(self.value + sign * self.error) for sign in (-1.0, 0.0, 1.0))
        error = math.hypot(value - less, more - value) / math.sqrt(2.0)
        return self._replace(value=value, error=error, low=rising(self.low), high=rising(self.high))

    @classmethod
    def with_interval(
        cls, name: str, value: float, error: float, room: float = math.inf, rounding: float = 0.0
    ) -> Estimate:
        """Make an estimate with an interval.

        Args:
            name: name of the number.
            value: the estimate.
            error: standard deviation of its noise.
            room: errors by which the value might be lower, or if negative higher, and still be told; see
                `conditional_scores`.
            rounding: largest difference from the exact value without noise.
        """
        if not (math.isfinite(value) and math.isfinite(error)):
            return cls(name)
        below, above = (_reach(room), CONFIDENCE) if room > 0.0 else (CONFIDENCE, _reach(-room))
        low, high = value - below * error - rounding, value + above * error + rounding
        return cls(name, value, math.hypot(error, rounding), low, high)


Estimator = Callable[..., float]
"""Function of some totals, in the order of their places, that returns a number."""


def conditional_scores(score: Scores, room: Scores) -> tuple[Scores, Scores]:
    """Correct normal scores of noisy numbers that are told only if some noisy number exceeds a threshold.

    A count that is told because it is large is likelier too large; so is a mean's denominator. Given that a figure is
    told, and the part of that noisy number that is independent of the figure's own noise, the noise is normal beyond a
    known bound (Lee, Sun, Sun, Taylor 2016, arXiv 1311.6238).

    Args:
        score: deviation from a supposed value, in errors.
        room: errors by which the figure might be lower, or if negative higher, and still be told.

    Returns:
        The scores by which the supposed value is too low, and too high, for 95 % at least on either side; the first is
        at most `score`, the second at least.
    """
    from scipy.special import log_ndtr, ndtri_exp

    below, sign = np.abs(room), np.sign(room)
    told = -sign * ndtri_exp(log_ndtr(-sign * score) - log_ndtr(below - sign * score)).clip(-99.0, 99.0)
    return np.minimum(score, told), np.maximum(score, told)


def _reach(room: float) -> float:
    """Return how many errors lie between a figure and the farther end of its interval."""
    from scipy.optimize import brentq

    if room > FAR:
        return CONFIDENCE
    room = max(room, 0.01)  # then already farther than a possible value
    return float(brentq(lambda score: conditional_scores(score, room)[0] - CONFIDENCE, CONFIDENCE, FAR + 40.0 / room))


def ratio(name: str, numerator: float, denominator: float, deviation: float) -> Estimate:
    """Estimate a mean of numbers from -1 to 1 as a ratio of two noisy totals with the same deviation.

    The interval is Fieller's (1954): all ratios r for which numerator - r denominator is not farther from zero than its
    own noise explains, given that the denominator is surely above zero (`ENOUGH`). It is exact however few records
    there are.
    """
    value, squared = numerator / denominator, (CONFIDENCE * deviation) ** 2
    middle, rest = numerator * denominator, denominator**2 - squared
    reach = math.sqrt(squared * (numerator**2 + rest))
    low, high = (middle - reach) / rest, (middle + reach) / rest
    told = denominator / deviation - ENOUGH
    if told < FAR:

        def scores(r: float) -> tuple[Scores, Scores]:
            own = math.hypot(1.0, r)
            return conditional_scores(
                (numerator - r * denominator) / (deviation * own), -told * own / r if r else math.inf
            )

        low = _falls(lambda r: float(scores(r)[0]) - CONFIDENCE)
        high = _falls(lambda r: float(scores(r)[1]) + CONFIDENCE)
    error = math.hypot(deviation * math.hypot(1.0, min(abs(value), 1.0)) / denominator, ROUNDING)
    return Estimate(name, value, error, low - ROUNDING, high + ROUNDING).clip(-1.0, 1.0)


def _falls(function: Callable[[float], float]) -> float:
    """Return where a falling function crosses zero between -1 and 1; else the end."""
    from scipy.optimize import brentq

    if function(-1.0) <= 0.0 or function(1.0) >= 0.0:
        return -1.0 if function(-1.0) <= 0.0 else 1.0
    return float(brentq(function, -1.0, 1.0))


def delta_method(name: str, estimator: Estimator, noisy: Noisy, places: Sequence[int]) -> Estimate:
    """Estimate a smooth function of a noisy count and other totals, with its error by the delta method.

    Slopes are taken over one standard deviation of the noise to each side. The function must extend beyond possible
    values (a variance below zero), so that the interval holds the noiseless value as often as it states. It is told if
    the count is surely above zero (`ENOUGH_FOR_SQUARES`).

    Args:
        name: name of the estimate.
        estimator: function of some totals.
        noisy: all totals.
        places: places of the totals that the estimator takes; the first is the count's.
    """
    totals = noisy.totals[list(places)].tolist()
    halves = []
    for place, total in enumerate(totals):
        before, after = totals[:place], totals[place + 1 :]
        up, down = (estimator(*before, total + sign * noisy.deviation, *after) for sign in (1.0, -1.0))
        halves.append((up - down) / 2.0)
    error, count = math.hypot(*halves), totals[0] / noisy.deviation
    room = (count - ENOUGH_FOR_SQUARES) * error / halves[0] if halves[0] else math.inf
    return Estimate.with_interval(name, estimator(*totals), error, room, ROUNDING * count * sum(map(abs, halves[1:])))
