"""What an answer says: figures, each with how far the noise may have moved it. All of it is post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 1.959963984540054
"""Standard errors on both sides of a value that a 95 % confidence interval reaches."""

ENOUGH = 3.0
"""Standard errors that a noisy number of records must be above zero for a mean or a quantile."""

ENOUGH_FOR_SQUARES = 5.0
"""The same for standard deviations, covariances and correlations.

Their intervals are approximate: where the count is just so high, 7 of 100 releases state one that does not hold what is
there without noise, and of 10 deviations on 5 or 6 do."""


@dataclass(frozen=True, slots=True)
class Noisy:
    """Noisy totals of one question and one group, of one client or the sum of several.

    Attributes:
        totals: in whole lattice steps, shape [width].
        deviation: standard deviation of the noise in each, in lattice steps.
    """

    totals: NDArray[np.float64]
    deviation: float


class Figure(NamedTuple):
    """One number of an answer.

    Attributes:
        name: what it is.
        value: the estimate; None: the noise leaves nothing to be said.
        error: standard error that the noise gives it; None where there is no value. That of the sample is not in it.
        low, high: 95 % confidence interval for what would be there without noise.
        group: of the records that it is about; "": all of them.
    """

    name: str
    value: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    group: str = ""

    def within(self, least: float, most: float) -> Figure:
        """The same of what can only be from `least` to `most`; its error stays."""
        if self.value is None or self.low is None or self.high is None:
            return self
        value, low, high = (min(max(end, least), most) for end in (self.value, self.low, self.high))
        return self._replace(value=value, low=low, high=high)

    def mapped(self, rising: Callable[[float], float]) -> Figure:
        """A rising function of this figure and of its interval; its error is that of a move by one error."""
        if self.value is None or self.error is None or self.low is None or self.high is None:
            return self
        error = (rising(self.value + self.error) - rising(self.value - self.error)) / 2.0
        return self._replace(value=rising(self.value), error=error, low=rising(self.low), high=rising(self.high))

    @classmethod
    def of(cls, name: str, value: float, error: float) -> Figure:
        """A figure whose interval is as wide on both sides."""
        if not (math.isfinite(value) and math.isfinite(error)):
            return cls(name)
        return cls(name, value, error, value - CONFIDENCE * error, value + CONFIDENCE * error)


Estimator = Callable[..., float]
"""From some totals, in the order of their places."""


def ratio(name: str, over: float, under: float, deviation: float) -> Figure:
    """A mean of numbers from -1 to 1: one noisy total over another, each with the same deviation.

    The interval is Fieller's (1954): all ratios r for which over - r under is not farther from zero than its own noise
    explains. It is exact however few records there are, as long as `under` is surely above zero (`ENOUGH`).
    """
    value, squared = over / under, (CONFIDENCE * deviation) ** 2
    middle, rest = over * under, under**2 - squared
    reach = math.sqrt(squared * (over**2 + rest))
    error = deviation * math.hypot(1.0, min(abs(value), 1.0)) / under
    return Figure(name, value, error, (middle - reach) / rest, (middle + reach) / rest).within(-1.0, 1.0)


def estimated(name: str, estimator: Estimator, noisy: Noisy, places: Sequence[int]) -> Figure:
    """A figure that is a smooth function of noisy totals, its error by the delta method.

    Slopes are taken over one standard deviation of the noise to each side: what the noise can do. The function must go
    beyond what can be (a variance below zero), so that what can be is in the interval as often as it says.

    Args:
        name: of the figure.
        estimator: of totals.
        noisy: all totals.
        places: of those that the estimator takes.
    """
    totals = noisy.totals[list(places)].tolist()
    halves = []
    for place, total in enumerate(totals):
        before, after = totals[:place], totals[place + 1 :]
        up, down = (estimator(*before, total + sign * noisy.deviation, *after) for sign in (1.0, -1.0))
        halves.append((up - down) / 2.0)
    return Figure.of(name, estimator(*totals), math.hypot(*halves))
