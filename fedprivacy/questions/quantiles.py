"""Quantiles of a bounded number, by the matrix mechanism for running counts.

The number of records below each of n equally spaced points is a running sum of n bin counts. Noise on the bins would
add up along it, and noise on the running counts would have to cover that a record is in all later ones. A compromise is
a factorisation: running sums are A = C C with C the Toeplitz matrix of the coefficients of (1 - x)^(-1/2), that is 1,
1/2, 3/8, 5/16 ... A record's vector is its bin's column of C, the release is C times the bin counts, and the other C
turns it into running counts. The error of each grows with log n, by a factor that no factorisation improves on by more
than a constant (Fichtenberger, Henzinger, Upadhyay 2023, arXiv 2202.11205); half of that of a binary tree with all its
levels averaged (Honaker 2015). Here C's coefficients are whole numbers, so that sensitivity is exact, and the exact
inverse computes the running counts.

For one quantile of one client alone, an exponential mechanism errs a third as much at equal privacy. But its answers do
not add up over clients, and serve one quantile only: with sixty quantiles, each errs more than here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.arguments import (
    QuestionError,
    as_bounds,
    as_probability,
    as_tuple,
    as_whole,
    check_name,
    settle,
)
from fedprivacy.questions.conditions import ChosenRecords
from fedprivacy.questions.figures import CONFIDENCE, ENOUGH, Estimate, Noisy, conditional_scores
from fedprivacy.questions.lattice import Totals, edges, interval
from fedprivacy.questions.question import Question

MOST_POINTS = 4096
MOST_QUANTILES = 99
UNIT = 2**12
"""First coefficient of C, in whole steps."""

_DEFINITIONS = 1.0
"""Number of records by which definitions of a quantile that lies between two records differ."""

_remember = lru_cache(maxsize=32)  # bounded, because the caller chooses the points and quantiles


@_remember
def coefficients(count: int) -> Totals:
    """Return the first coefficients of C in whole steps, shape [count]: falling, and positive."""
    places = np.arange(1, count)
    exact = np.concatenate([[1.0], np.cumprod((2.0 * places - 1.0) / (2.0 * places))])
    return np.asarray(np.rint(UNIT * exact), dtype=np.int64)


@_remember
def decoder(count: int) -> NDArray[np.float64]:
    """Return the coefficients r that compute running counts, shape [count]: F_j = sum of r_k y_(j - k).

    They are those of the power series 1 / ((1 - x) c(x)), where c(x) is the series of the whole coefficients.
    """
    c, inverse = coefficients(count).astype(np.float64), np.zeros(count)
    inverse[0] = 1.0 / c[0]
    for place in range(1, count):
        inverse[place] = -(inverse[:place] @ c[place:0:-1]) / c[0]
    return np.asarray(np.cumsum(inverse))


@dataclass(frozen=True, kw_only=True)
class Quantiles(Question):
    """Quantiles of a number, such as the median.

    Attributes:
        low, high: public bounds to which numbers beyond are moved.
        at: probabilities, each above 0 and below 1; ascending, and each once.
        points: number of equally wide intervals in which a quantile is located; within one it is interpolated. Its 95 %
            interval consists of whole ones, so that it is right for whole numbers, too, and other heaps.
    """

    kind = "quantiles"
    column: str
    low: float
    high: float
    at: tuple[float, ...] = (0.5,)
    points: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("column", self.column)
        low, high = as_bounds(self.column, self.low, self.high)
        at = {as_probability("a quantile", probability) for probability in as_tuple("at", self.at)}
        if not 1 <= len(at) <= MOST_QUANTILES:
            raise QuestionError(f"{len(at)} quantiles are asked for; name 1 to {MOST_QUANTILES}.")
        points = as_whole("points", self.points, 2, MOST_POINTS)
        settle(self, low=low, high=high, at=tuple(sorted(at)), points=points)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def width(self) -> int:
        return self.points

    @property
    def precision(self) -> float:
        """Width of an interval: where within it a quantile lies is not known, even without noise."""
        return self.high / self.points - self.low / self.points

    @property
    def _edges(self) -> NDArray[np.float64]:
        return edges(self.low, self.high, self.points)[1]

    @property
    def squared_sensitivity(self) -> int:
        """Squared norm of a record in the first interval, whose vector is longest."""
        return int((coefficients(self.points) ** 2).sum())

    @property
    def per_count(self) -> float:
        """Standard error of the last running count, in deviations of the noise."""
        return math.sqrt(float((decoder(self.points) ** 2).sum()))

    def words_of(self, unit: str) -> str:
        return f"{', '.join(map(_name, self.at))} of {self.column}, to within {self.precision:.3g}"

    def sum_records(self, rows: ChosenRecords) -> Totals:
        """Sum C times the number of records in each interval, in whole numbers."""
        places = interval(rows.numbers(self.column), self.low, self.high, self.points)
        counts = np.bincount(places, minlength=self.points).astype(np.int64)
        return np.convolve(counts, coefficients(self.points))[: self.points]

    def records(self, noisy: Noisy) -> float:
        """Return the last running count."""
        return float(self._running(noisy)[-1])

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return each quantile, with a 95 % confidence interval."""
        running = self._running(noisy)
        last = self.per_count * noisy.deviation
        count = Estimate.with_interval("count", float(running[-1]), last)
        enough = running[-1] > ENOUGH * last
        return [count] + [
            self._quantile(p, running, noisy) if enough else Estimate(self._figure_name(p)) for p in self.at
        ]

    def _figure_name(self, probability: float) -> str:
        return f"{_name(probability)} of {self.column}"

    def _running(self, noisy: Noisy) -> NDArray[np.float64]:
        """Compute noisy numbers of records up to the end of each interval, shape [points]."""
        return np.convolve(noisy.totals, decoder(self.points))[: self.points]

    def _quantile(self, probability: float, running: NDArray[np.float64], noisy: Noisy) -> Estimate:
        """Find where the noisy distribution function crosses a probability, and where it may cross it.

        F - p F_n is a linear function of the noisy totals, so the deviation of its noise is known at every edge: the
        confidence interval goes from the last edge below which are surely too few records, to the first one below which
        are surely enough. Where records lie between two edges is not known, so that the error holds the width.
        """
        deviations, shared = spread(self.points, probability)
        deviations, last = noisy.deviation * deviations, self.per_count * noisy.deviation
        excess = np.concatenate([[0.0], running]) - probability * running[-1]
        # A quantile is told if the last running count is large, which has noise in common with each of the others.
        room = (running[-1] / last - ENOUGH) / shared
        _, too_few = conditional_scores((excess + _DEFINITIONS) / deviations, room)
        enough, _ = conditional_scores((excess - _DEFINITIONS) / deviations, room)
        first = int(np.count_nonzero(_isotonic((too_few + CONFIDENCE) * deviations) < 0.0)) - 1
        after = int(np.count_nonzero(_isotonic((enough - CONFIDENCE) * deviations) <= 0.0))
        low, high = (float(self._edges[place]) for place in (max(first, 0), min(after, self.points)))
        value = self._crossing(_isotonic(excess))
        error = math.hypot(max(value - low, high - value) / CONFIDENCE, self.precision)
        return Estimate(self._figure_name(probability), value, error, min(low, value), max(high, value))

    def _crossing(self, rising: NDArray[np.float64]) -> float:
        """Find where a rising function, known at every edge, crosses zero (interpolated), or return a bound."""
        after = int(np.searchsorted(rising, 0.0, side="left"))
        if after in (0, len(rising)):
            return self.high if after else self.low
        share = -rising[after - 1] / (rising[after] - rising[after - 1])
        return float(self._edges[after - 1] + share * (self._edges[after] - self._edges[after - 1]))


def spread(count: int, probability: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the deviation of F - p F_n at every edge, in deviations of the noise, and its correlation with F_n.

    Both have the shape [count + 1].
    """
    own, shared = _products(count)
    deviations = np.sqrt(np.maximum(own - 2.0 * probability * shared + probability**2 * own[-1], 0.0))
    return deviations, (shared - probability * own[-1]) / (deviations * math.sqrt(own[-1]))


@_remember
def _products(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the variance of F_j and its covariance with F_n, both for each j >= 0.

    All are sums over the same noise y: F_j holds r_(j - i) y_i, and F_n holds r_(n - i) y_i.
    """
    r = decoder(count)
    own = np.concatenate([[0.0], np.cumsum(r**2)])
    shared = np.array([float(r[:j] @ r[count - j :]) for j in range(count + 1)])
    return own, shared


def _isotonic(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest function that never falls, in least squares, because a distribution function does not."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x)


def _name(probability: float) -> str:
    return "median" if probability == 0.5 else f"quantile {probability:g}"
