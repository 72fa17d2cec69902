"""Sums and products of bounded numbers: sum, mean, standard deviation, covariance.

A number x between public bounds becomes z in [-1, 1], in whole steps. A record's vector is its count, its z, and in
higher orders also the second Chebyshev polynomial 2 z^2 - 1 (which, unlike z^2, wastes no half of its range) or
products of two z. Every entry is at most its weight in size, in whole steps, so that a vector has a squared norm of at
most the sum of their squares; it has that much where every z is at a bound. A record of which one of the columns is no
number has the zero vector.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np

from fedprivacy.questions.arguments import QuestionError, as_bounds, as_tuple, check_name, settle
from fedprivacy.questions.conditions import ChosenRecords
from fedprivacy.questions.figures import ENOUGH, ENOUGH_FOR_SQUARES, ROUNDING, Estimate, Noisy, delta_method, ratio
from fedprivacy.questions.lattice import STEPS, Totals, Values, centre, round_to_steps
from fedprivacy.questions.question import Question

MOST_COLUMNS = 256

_NAMED = 4
"""Maximum number of columns that a question's description names."""

LEAST_COUNT = 0.085
"""Minimum share of a sum's squared sensitivity that its count has: it adds at most 4.5 % to the sum's error."""

_LEAST_SUM = 1e-4
"""Minimum share of a sum, before all shares are scaled to sum to 1, so that its steps stay fine."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A column of numbers, with public bounds to which numbers beyond are moved."""

    column: str
    low: float
    high: float

    def __post_init__(self) -> None:
        check_name("column", self.column)
        low, high = as_bounds(self.column, self.low, self.high)
        settle(self, low=low, high=high)

    @property
    def middle(self) -> float:
        """Middle between the bounds."""
        return self.low / 2.0 + self.high / 2.0

    @property
    def half(self) -> float:
        """Distance from the middle to either bound."""
        return self.high / 2.0 - self.low / 2.0


@dataclass(frozen=True, kw_only=True)
class _Moments(Question):
    """Base of questions estimated from a count and sums of bounded numbers.

    Attributes:
        of: columns; a record counts if all of them are numbers.
    """

    of: tuple[Bounded, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, of=as_tuple("of", self.of))
        if not 1 <= len(self.of) <= MOST_COLUMNS:
            raise QuestionError(f"{len(self.of)} columns are named; name 1 to {MOST_COLUMNS}.")
        if not all(isinstance(bounded, Bounded) for bounded in self.of):
            raise QuestionError("of holds what is no Bounded; give columns with their bounds.")
        if len(set(self.reads)) < len(self.of):
            raise QuestionError("a column is named twice; name each once.")

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(bounded.column for bounded in self.of)

    @property
    def weights(self) -> tuple[int, ...]:
        """Largest absolute value of each entry of a record's vector, in whole steps; the count always has it."""
        return (STEPS,) * self.width

    @property
    def squared_sensitivity(self) -> int:
        """Squared norm of a record at the bounds of every column."""
        return sum(weight**2 for weight in self.weights)

    @property
    def per_count(self) -> float:
        """Inverse of the count's weight: a count is in as many whole steps as its weight."""
        return 1.0 / self.weights[0]

    @property
    def _columns_text(self) -> str:
        first = ", ".join(self.reads[:_NAMED])
        return first if len(self.of) <= _NAMED else f"{first} and {len(self.of) - _NAMED} more"

    def sum_records(self, rows: ChosenRecords) -> Totals:
        """Sum the count, z, and the additional products of this kind."""
        scaled = [centre(rows.numbers(each.column), each.low, each.high) for each in self.of]
        known = np.logical_and.reduce([~np.isnan(values) for values in scaled])
        z = [values[known] for values in scaled]
        count, *weights = self.weights
        entries = zip((*z, *self._products(z)), weights, strict=True)
        sums = [int(round_to_steps(values, weight).sum()) for values, weight in entries]
        return np.array([count * np.count_nonzero(known), *sums], dtype=np.int64)

    @abstractmethod
    def _products(self, z: list[Values]) -> Iterator[Values]:
        """Yield the products to sum besides z: each in [-1, 1], shape [records]."""

    def records(self, noisy: Noisy) -> float:
        return float(noisy.totals[0]) * self.per_count

    def _enough(self, noisy: Noisy, errors: float = ENOUGH) -> bool:
        """Return whether the noisy count is large enough to divide by."""
        return float(noisy.totals[0]) > errors * noisy.deviation

    def _count(self, noisy: Noisy) -> Estimate:
        return Estimate.with_interval("count", self.records(noisy), self.per_count * noisy.deviation)

    def _mean(self, place: int, noisy: Noisy) -> Estimate:
        of, name = self.of[place], f"mean of {self.of[place].column}"
        if not self._enough(noisy):
            return Estimate(name)
        count, own = float(noisy.totals[0]), float(noisy.totals[1 + place])
        return ratio(name, own, count, noisy.deviation).transform(lambda z: of.middle + of.half * z)


def _covariance(count: float, one: float, other: float, product: float) -> float:
    """Compute a covariance from a count and sums of z, in units of the columns' halves."""
    return product / count - (one / count) * (other / count)


def _variance(count: float, one: float, polynomial: float) -> float:
    """Compute a variance from a count and sums of z and 2 z^2 - 1, in units of the column's half, squared."""
    return _covariance(count, one, one, (polynomial + count) / 2.0)


def _correlation(*totals: float) -> float:
    """Compute a correlation from a count and sums of both z, their polynomials and product; NaN without variances."""
    count, one, other, polynomial, other_polynomial, product = totals
    variances = _variance(count, one, polynomial), _variance(count, other, other_polynomial)
    if min(variances) <= 0.0:
        return math.nan
    return _covariance(count, one, other, product) / math.sqrt(math.prod(variances))


@dataclass(frozen=True, kw_only=True)
class Mean(_Moments):
    """Count, sum and mean of bounded numbers."""

    kind = "mean"

    @property
    def width(self) -> int:
        """One count, and a sum for each column."""
        return 1 + len(self.of)

    def words_of(self, unit: str) -> str:
        return f"mean of {self._columns_text}"

    def _products(self, z: list[Values]) -> Iterator[Values]:
        yield from ()

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return the count and the means."""
        return [self._count(noisy), *(self._mean(place, noisy) for place in range(len(self.of)))]


@dataclass(frozen=True, kw_only=True)
class Sum(Mean):
    """Count and sums of bounded numbers.

    A sum is middle n + half (sum of z). The sensitivity is divided between the count n and each sum of z so that the
    sum of the squared errors is minimal, each error in units of the largest number that its bounds allow. With one
    column the error is then that of the sum alone, as if no count were released, except where the bounds lie around
    zero and the count would get almost nothing (`LEAST_COUNT`).
    """

    kind = "sum"

    @property
    def weights(self) -> tuple[int, ...]:
        """Weights that minimise A^2 + sum B_i^2 times sum (u_i^2 / A^2 + v_i^2 / B_i^2): A^2 : B_i^2 = |u| : v_i."""
        largest = [max(abs(each.low), abs(each.high)) for each in self.of]
        sums = [max(each.half / most, _LEAST_SUM) for each, most in zip(self.of, largest, strict=True)]
        count = math.hypot(*(each.middle / most for each, most in zip(self.of, largest, strict=True)))
        count = max(count, LEAST_COUNT / (1.0 - LEAST_COUNT) * sum(sums))
        unit = max(count, *sums)
        return tuple(round(STEPS * math.sqrt(share / unit)) for share in (count, *sums))

    def words_of(self, unit: str) -> str:
        return f"sum of {self._columns_text}"

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return count and sums: each a linear function of noisy totals."""
        count, *sums = (noisy.totals / self.weights).tolist()
        found = [self._count(noisy)]
        for each, total, weight in zip(self.of, sums, self.weights[1:], strict=True):
            error = noisy.deviation * math.hypot(each.middle * self.per_count, each.half / weight)
            rounding = max(count, 0.0) * each.half * ROUNDING * STEPS / weight
            value = each.middle * count + each.half * total
            found.append(Estimate.with_interval(f"sum of {each.column}", value, error, rounding=rounding))
        return found


@dataclass(frozen=True, kw_only=True)
class Spread(_Moments):
    """Count, mean and standard deviation of bounded numbers, by which inputs can be standardised."""

    kind = "spread"

    @property
    def width(self) -> int:
        """One count, and two sums for each column."""
        return 1 + 2 * len(self.of)

    def words_of(self, unit: str) -> str:
        return f"mean and standard deviation of {self._columns_text}"

    def _products(self, z: list[Values]) -> Iterator[Values]:
        yield from (2.0 * values * values - 1.0 for values in z)

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return the count, and mean and standard deviation of each column."""
        found = [self._count(noisy)]
        for place in range(len(self.of)):
            found += [self._mean(place, noisy), self._deviation(place, noisy)]
        return found

    def _deviation(self, place: int, noisy: Noisy) -> Estimate:
        of, name = self.of[place], f"standard deviation of {self.of[place].column}"
        if not self._enough(noisy, ENOUGH_FOR_SQUARES):
            return Estimate(name)
        squared = delta_method(name, _variance, noisy, (0, 1 + place, 1 + len(self.of) + place)).clip(0.0, 1.0)
        return squared.transform(lambda variance: of.half * math.sqrt(max(variance, 0.0)))


@dataclass(frozen=True, kw_only=True)
class Covariance(_Moments):
    """Means, covariances and correlations of bounded numbers, the input of principal component analysis."""

    kind = "covariance"

    @property
    def width(self) -> int:
        """One count, a sum for each column, and one for each pair of columns, equal ones included."""
        columns = len(self.of)
        return 1 + columns + columns * (columns + 1) // 2

    def words_of(self, unit: str) -> str:
        return f"covariance of {self._columns_text}"

    def _products(self, z: list[Values]) -> Iterator[Values]:
        yield from (2.0 * values * values - 1.0 for values in z)
        yield from (z[one] * z[other] for one, other in combinations(range(len(self.of)), 2))

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return count, means, covariances of all pairs, and correlations of those of different columns."""
        columns = range(len(self.of))
        found = [self._count(noisy), *(self._mean(place, noisy) for place in columns)]
        found += [self._pair_figure("covariance", *pair, noisy) for pair in combinations_with_replacement(columns, 2)]
        return found + [self._pair_figure("correlation", *pair, noisy) for pair in combinations(columns, 2)]

    def _pair_figure(self, statistic: str, one: int, other: int, noisy: Noisy) -> Estimate:
        first, second = self.of[one], self.of[other]
        name = f"{statistic} of {first.column} and {second.column}"
        if not self._enough(noisy, ENOUGH_FOR_SQUARES):
            return Estimate(name)
        own, product, others = (self._place(*pair) for pair in ((one, one), (one, other), (other, other)))
        if statistic == "correlation":
            places = (0, 1 + one, 1 + other, own, others, product)
            variances = (
                delta_method(name, _variance, noisy, (0, *each)) for each in ((1 + one, own), (1 + other, others))
            )
            if any((each.value or 0.0) <= ENOUGH_FOR_SQUARES * (each.error or 0.0) for each in variances):
                return Estimate(name)  # of equal numbers there is none
            return delta_method(name, _correlation, noisy, places).clip(-1.0, 1.0)
        if one == other:
            found = delta_method(name, _variance, noisy, (0, 1 + one, own)).clip(0.0, 1.0)
        else:
            found = delta_method(name, _covariance, noisy, (0, 1 + one, 1 + other, product)).clip(-1.0, 1.0)
        return found.transform(lambda z: first.half * second.half * z)

    def _place(self, one: int, other: int) -> int:
        """Return the place of the sum of the products of two columns, the first one before the other or the same."""
        columns = len(self.of)
        if one == other:
            return 1 + columns + one
        before = one * columns - one * (one + 1) // 2  # pairs whose first is an earlier column
        return 1 + 2 * columns + before + other - one - 1
