"""Dominating pairs of distributions, one for each mechanism: the masses of their privacy loss in intervals.

The loss of outcome x is log(P(x) / Q(x)). A pair is that of `Direction.REMOVE`; exchanging P and Q gives `ADD`, and the
losses change their sign. A discretisation needs only the masses of P and Q between consecutive losses, computed so that
small masses keep their relative precision. Mass at one loss (an atom) belongs to the cell that ends there or, if its
loss is rounded, to a neighbour within the slack.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from fedprivacy.accounting.arrays import FloatArray, IntArray
from fedprivacy.values.events import (
    Event,
    FixedSizeSampledGaussian,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    RowSampledGaussian,
    TruncatedPoissonSampledGaussian,
)

# Every bound on a rounding error below is a small number of units in the last place, times this: the elementary
# functions used err by at most 2 units and no expression chains more than 4 of them.
ROUNDING = 8.0 * 2.0**-53

_FARTHEST = 40.0  # standard deviations; the normal tail beyond is below the smallest floating-point number
_NO_WEIGHT = 1e-50  # probability below which a component of a mixture is left out, and counted as an infinite loss
_NEARLY_SURE = 0.999  # probability of joining from which on that of not joining would be lost in `1 - q`
_MOST_NEWTON_STEPS = 50
_AT_ONCE = 2**20  # components times losses


class Direction(enum.Enum):
    """The direction of a comparison: the shard that holds the record comes first or second."""

    REMOVE = "remove"  # P is the release with the record, Q the one without: for a sampled Gaussian, P is the mixture
    ADD = "add"  # P is the release without the record, Q the one with it


@dataclass(frozen=True, slots=True, eq=False)
class Masses:
    """Masses of distributions between consecutive losses and beyond the outer two of each.

    The losses of several distributions stand one after the other, with an empty cell between two distributions.
    """

    below: FloatArray  # mass below the first loss, rounded up, shape [distributions]
    inside: FloatArray  # mass between each loss and the next, shape [losses - 1]
    above: FloatArray  # mass above the last loss, rounded up, shape [distributions]
    error: FloatArray  # bound on the rounding error of `inside`, shape [losses - 1]

    def plus(self, other: Masses) -> Masses:
        """Return the sum of these masses and others."""
        return Masses(
            self.below + other.below, self.inside + other.inside, self.above + other.above, self.error + other.error
        )

    def times(self, weights: FloatArray, of_cells: FloatArray) -> Masses:
        """Return a share of these masses: `weights` of the distributions, and of the distribution of each cell."""
        return Masses(weights * self.below, of_cells * self.inside, weights * self.above, of_cells * self.error)

    def reversed(self) -> Masses:
        """Return the masses between the same losses with the opposite sign; the last distribution comes first."""
        return Masses(self.above[::-1], self.inside[::-1], self.below[::-1], self.error[::-1])

    def merged(self, cells: IntArray) -> Masses:
        """Return the masses of wider cells, each from the one that `cells` names until before the next."""
        inside, error = np.add.reduceat(self.inside, cells), np.add.reduceat(self.error, cells)
        return Masses(self.below, inside, self.above, error + 8.0 * ROUNDING * inside)

    def right_of(self, cell: int, other: Masses) -> Masses:
        """Return these masses from the given cell on, and those of the other before it."""
        inside, error = (
            np.concatenate([left[:cell], right[cell:]])
            for left, right in ((other.inside, self.inside), (other.error, self.error))
        )
        return Masses(other.below, inside, self.above, error)


class Mixing(NamedTuple):
    """Probabilities that none and that some of the rows join, of a mixture or of the mixture of each loss."""

    none: FloatArray
    log_none: FloatArray
    some: FloatArray
    log_some: FloatArray

    @classmethod
    def of_one_row(cls, sampling_rates: FloatArray) -> Mixing:
        """Compute them for one row and several rates; 1 - q is correctly rounded."""
        with np.errstate(divide="ignore"):
            return cls(1.0 - sampling_rates, np.log1p(-sampling_rates), sampling_rates, np.log(sampling_rates))


@dataclass(frozen=True, eq=False)
class Joining:
    """Probabilities that j of k rows join a Poisson sample: Binomial(k, q), correctly rounded."""

    rows: IntArray  # each j whose probability counts, with 0 and 1, shape [counts]
    weights: FloatArray  # its probability, shape [counts]
    some: float  # probability that at least one row joins
    log_none: float  # log of the probability that no row joins
    left_out: float  # bound on the probability of all other j together

    @functools.cached_property
    def log_weights(self) -> FloatArray:
        """Logs of the probabilities of j > 0 rows, given that some row joins, shape [counts - 1, 1]."""
        return np.asarray(np.log(self.weights[1:, None]) - np.log(self.some))

    @functools.cached_property
    def mixing(self) -> Mixing:
        """Probabilities that no row and that some row joins."""
        none, some = self.weights[:1], np.array([self.some])
        return Mixing(none, np.array([self.log_none]), some, np.log(some))

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, sampling_rate: float, rows: int = 1) -> Joining:
        """Compute the probabilities for k rows, each of which joins with probability `sampling_rate`."""
        joins, all_of_them = sampling_rate.as_integer_ratio()
        stays, whole = all_of_them - joins, all_of_them**rows
        weights = np.array([math.comb(rows, j) * joins**j * stays ** (rows - j) / whole for j in range(rows + 1)])
        counts = (weights >= _NO_WEIGHT) | (np.arange(rows + 1) <= 1)
        log_none = rows * math.log1p(-sampling_rate) if stays else -math.inf
        left_out = _NO_WEIGHT * float((~counts).sum())
        return cls(np.flatnonzero(counts), weights[counts], (whole - stays**rows) / whole, log_none, left_out)


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """The pair P = sum_j b_j N(j, s^2), Q = N(0, s^2), b = Binomial(k, q).

    For k = 1, P is (1 - q) N(0, s^2) + q N(1, s^2). The loss increases with the outcome, for every k.
    """

    sampling_rate: float  # q, in (0, 1]
    noise: float  # s > 0
    rows: int = 1  # k >= 1

    @property
    def largest_loss(self) -> float:
        """Largest loss: infinite."""
        return math.inf

    def support(self, reach: float) -> tuple[float, float]:
        """Return the smallest and largest loss, in nats, over outcomes within `reach` standard deviations of any
        component.
        """
        low, high = self._losses(np.array([-reach * self.noise, self._joining.rows[-1] + reach * self.noise]))
        return float(low), float(high)

    def deviation(self, direction: Direction) -> float:
        """Return the standard deviation of the loss under the distribution that plays P, in nats, to a few digits."""
        z = np.linspace(-9.0, 9.0, 181)
        weights, x = np.exp(-0.5 * z**2), z * self.noise
        if direction is Direction.REMOVE:
            weights = np.multiply.outer(self._joining.weights, weights).ravel()
            x = np.add.outer(self._joining.rows, x).ravel()
        return _weighted_deviation(self._losses(x), weights)

    def masses(self, losses: FloatArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between increasing losses, and a bound on the error of those losses, in nats."""
        if self.rows == 1:
            return SampledGaussians.of([self]).masses(losses, np.zeros(1, dtype=np.int64))
        outcomes, slack = self.outcomes(losses)
        joining, half, first = self._joining, 0.5 / self.noise, np.zeros(1, dtype=np.int64)
        base = _normal_masses(outcomes, np.array(half), first)
        mixture = base.times(joining.weights[0], joining.weights[0])
        for j, weight in zip(joining.rows[1:].tolist(), joining.weights[1:], strict=True):
            mixture = mixture.plus(_normal_masses(outcomes, np.array((1 - 2 * j) * half), first).times(weight, weight))
        sums = ROUNDING * (joining.rows.size - 2) * mixture.inside  # rounding of further sums
        above = mixture.above + joining.left_out
        return Masses(mixture.below, mixture.inside, above, mixture.error + sums), base, np.array([slack])

    def outcomes(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """Return the outcomes x at which the loss takes the given values, as (x - 1/2) / s, shape [losses].

        Also returns a bound, in nats, on the distance of the exact loss at a returned outcome from the wanted one.
        """
        slack = ROUNDING * (1.0 + np.abs(losses).max() - np.log(self._joining.some) + (1.0 / self.noise) ** 2)
        if self.rows == 1:
            return SampledGaussians.of([self]).outcomes(losses, np.zeros(1, dtype=np.int64)), float(slack)
        x, left = self._solved(unmixed(self._joining.mixing, losses))
        return (x - 0.5) / self.noise, float(slack) + left

    def _solved(self, log_ratios: FloatArray) -> tuple[FloatArray, float]:
        """Return the outcomes with the given losses of P given that some row joins, shape [losses], by Newton's method.

        These losses are a convex, increasing function of x, and at least each of their terms: from the least x at which
        a term reaches the wanted value every step leads down, and none too far. Also returns a bound on the distance of
        the exact losses there from the wanted ones: what is left of it, and rounding.
        """
        x, left = np.full(log_ratios.shape, -np.inf), 0.0
        possible = np.flatnonzero(log_ratios > -np.inf)
        for part in np.array_split(possible, 1 + possible.size * self._joining.rows.size // _AT_ONCE):
            wanted, j = log_ratios[part], self._joining.rows[1:, None]
            found = np.min(((wanted - self._log_weights) * self.noise**2 + 0.5 * j**2) / j, axis=0)
            for _ in range(_MOST_NEWTON_STEPS):
                terms = self._terms(found)
                reached = np.logaddexp.reduce(terms, axis=0)
                shares = np.exp(terms - reached)
                sizes = (shares * (np.abs(self._log_weights) + j * (np.abs(found) + j) / self.noise**2)).sum(axis=0)
                excess = reached - wanted
                if (np.abs(excess) <= ROUNDING * sizes).all():
                    break
                found = found - excess * self.noise**2 / (shares * j).sum(axis=0)
            x[part] = found
            left = max(left, float((np.abs(excess) + ROUNDING * sizes).max(initial=0.0)))
        return x, left

    def _losses(self, x: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return mixed(self._joining.mixing, np.logaddexp.reduce(self._terms(x), axis=0))

    def _terms(self, x: FloatArray) -> FloatArray:
        """Return logs of the density ratios of P's components j > 0, with their weights given that some row joins,
        shape [components, outcomes].
        """
        j = self._joining.rows[1:, None].astype(np.float64)
        return np.asarray(self._log_weights + (2.0 * j * x - j**2) / (2.0 * np.float64(self.noise) ** 2))

    @property
    def _log_weights(self) -> FloatArray:
        return self._joining.log_weights

    @property
    def _joining(self) -> Joining:
        return Joining.of(self.sampling_rate, self.rows)


class SampledGaussians(NamedTuple):
    """Several pairs of one row, each P = (1 - q) N(0, s^2) + q N(1, s^2), Q = N(0, s^2)."""

    sampling_rate: FloatArray  # shape [pairs]
    noise: FloatArray  # shape [pairs]

    @classmethod
    def of(cls, pairs: Sequence[SampledGaussian]) -> SampledGaussians:
        """Stack pairs."""
        return cls(np.array([one.sampling_rate for one in pairs]), np.array([one.noise for one in pairs]))

    def take(self, places: IntArray) -> SampledGaussians:
        """Select pairs."""
        return SampledGaussians(self.sampling_rate[places], self.noise[places])

    def support(self, reach: float) -> tuple[FloatArray, FloatArray]:
        """Return the smallest and largest losses, as `SampledGaussian.support` does, each of shape [pairs]."""
        low, high = self._losses(np.stack([-reach * self.noise, 1.0 + reach * self.noise], axis=1)).T
        return low, high

    def deviations(self) -> FloatArray:
        """Return the deviations of the loss, as `SampledGaussian.deviation` does, the smaller of both directions."""
        z = np.linspace(-9.0, 9.0, 181)
        density, joins = np.exp(-0.5 * z**2), self.sampling_rate[:, None]
        x = np.multiply.outer(self.noise, z)
        added, joined = self._losses(x), self._losses(1.0 + x)
        weights = np.concatenate([(1.0 - joins) * density, joins * density], axis=1)
        removed = _weighted_deviations(np.concatenate([added, joined], axis=1), weights)
        return np.minimum(_weighted_deviations(added, np.broadcast_to(density, added.shape)), removed)

    def _losses(self, x: FloatArray) -> FloatArray:
        """Compute the loss of outcomes x of each pair, shape [pairs, outcomes]."""
        mixing = Mixing(*(each.repeat(x.shape[1]) for each in Mixing.of_one_row(self.sampling_rate)))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_ratios = (2.0 * x - 1.0) / (2.0 * self.noise[:, None] ** 2)
        return mixed(mixing, log_ratios.ravel()).reshape(x.shape)

    def widths(self, losses: FloatArray, firsts: IntArray) -> FloatArray:
        """Return, for each loss and the next, how far apart their outcomes are: see `_widths`."""
        lengths = np.diff(np.append(firsts, losses.size))
        return _widths(self.outcomes(losses, firsts), (0.5 / self.noise).repeat(lengths))

    def outcomes(self, losses: FloatArray, firsts: IntArray) -> FloatArray:
        """Return outcomes as `SampledGaussian.outcomes` does; the losses of a pair begin at each of `firsts`."""
        lengths = np.diff(np.append(firsts, losses.size))
        mixing = Mixing(*(each.repeat(lengths) for each in Mixing.of_one_row(self.sampling_rate)))
        log_ratios = unmixed(mixing, losses)
        log_ratios *= self.noise.repeat(lengths)
        return log_ratios

    def masses(self, losses: FloatArray, firsts: IntArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between the increasing losses of each pair, which begin at each of `firsts`.

        Also returns bounds on the errors of those losses, in nats, shape [pairs].
        """
        lasts = np.append(firsts[1:], losses.size) - 1
        lengths = lasts - firsts + 1
        outcomes, half = self.outcomes(losses, firsts), (0.5 / self.noise).repeat(lengths)
        joins = self.sampling_rate.repeat(lengths)[1:]
        base = _normal_masses(outcomes, half, firsts)
        mixture = base.times(1.0 - self.sampling_rate, 1.0 - joins)
        mixture = mixture.plus(_normal_masses(outcomes, -half, firsts).times(self.sampling_rate, joins))
        largest = np.maximum(np.abs(losses[firsts]), np.abs(losses[lasts]))
        slack = ROUNDING * (1.0 + largest - np.log(self.sampling_rate) + (1.0 / self.noise) ** 2)
        return mixture, base, slack


@dataclass(frozen=True, slots=True)
class SubsampledGaussian:
    """The pair whose hockey-stick divergences bound those of a sum over a fixed-size sample, see its event.

    With A = N(0, s^2), B = N(1, s^2) and M = (1 - g) A + g B: its losses above 0 are those of (M, A), its losses below
    0 those of (A, M), and the remaining mass has a loss of exactly 0. This is one pair: a hockey-stick divergence of
    order above 1 depends on the losses above 0 alone, one of order below 1 on those below 0 alone, and P and Q are left
    with the same mass (1 - g) (A(x < 1/2) - A(x > 1/2)), because (M, A) and (A, M) have the same total variation. It
    is its own mirror image.
    """

    sampling_rate: float  # g, in (0, 1]
    noise: float  # s, standard deviation of the noise over twice the clipping norm, > 0

    @property
    def largest_loss(self) -> float:
        """Largest loss: infinite."""
        return math.inf

    def support(self, reach: float) -> tuple[float, float]:
        """Return the smallest and largest loss, in nats, over outcomes within `reach` standard deviations of either
        component.
        """
        _, high = self._poisson.support(reach)
        return -high, high

    def deviation(self, direction: Direction) -> float:
        """Return the standard deviation of the loss under P, in nats: about as large as that of (M, A)."""
        return self._poisson.deviation(Direction.REMOVE)

    def masses(self, losses: FloatArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between increasing losses, of which the middle one is 0."""
        mixture, base, slack = self._poisson.masses(losses)
        zero = losses.size // 2
        left = (1.0 - self.sampling_rate) * float(scipy.special.erf(math.sqrt(0.125) / self.noise))
        p, q = mixture.right_of(zero, base.reversed()), base.right_of(zero, mixture.reversed())
        for masses in (p, q):
            masses.inside[zero] += left
            masses.error[zero] += ROUNDING * left
        return p, q, slack

    @property
    def _poisson(self) -> SampledGaussian:
        return SampledGaussian(self.sampling_rate, self.noise)


@dataclass(frozen=True, slots=True)
class SampledLaplace:
    """The pair P = (1 - q) Lap(0, b) + q Lap(1, b), Q = Lap(0, b).

    Outcomes below 0 and above 1 have the same losses as 0 and 1: two atoms.
    """

    sampling_rate: float  # q, in (0, 1]
    noise: float  # b > 0

    @property
    def largest_loss(self) -> float:
        """Largest loss, log(1 - q + q e^(1 / b)): that of outcomes above 1 when the record is removed."""
        return self.support(math.inf)[1] * (1.0 + 1e-12)

    def support(self, reach: float) -> tuple[float, float]:
        """Return the smallest and largest loss, in nats, over all outcomes."""
        low, high = mixed(Joining.of(self.sampling_rate).mixing, np.array([-1.0, 1.0]) / np.float64(self.noise))
        return float(low), float(high)

    def deviation(self, direction: Direction) -> float:
        """Return the standard deviation of the loss under the distribution that plays P, in nats, to a few digits."""
        losses = np.linspace(*self.support(math.inf), 1025)
        losses[0] -= losses[-1] - losses[0]  # so that the first cell holds the atom
        p, q, _ = self.masses(losses)
        middles = 0.5 * (losses[1:] + losses[:-1])
        middles[0] = losses[1]
        return _weighted_deviation(middles, (p if direction is Direction.REMOVE else q).inside)

    def masses(self, losses: FloatArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between increasing losses, and a bound on the error of those losses, in nats."""
        largest, joining = 1.0 / self.noise, Joining.of(self.sampling_rate)
        log_ratio = unmixed(joining.mixing, losses)
        inner = np.clip(log_ratio, -largest, largest)
        atoms = log_ratio < -largest, log_ratio >= largest
        # Mass of Lap(0, b) at losses beyond.
        above = np.select(atoms, [1.0, 0.0], 0.5 * np.exp(-0.5 * (inner + largest)))
        below = np.select(atoms, [0.0, 1.0], 0.5 * np.exp(0.5 * (inner - largest)))  # mass of Lap(1, b) at losses up to
        doubt = 2.0 * ROUNDING * (1.0 + largest)
        base = Masses(1.0 - above[:1], above[:-1] - above[1:], above[-1:], doubt * (above[:-1] + above[1:]))
        shifted = Masses(below[:1], below[1:] - below[:-1], 1.0 - below[-1:], doubt * (below[:-1] + below[1:]))
        slack = ROUNDING * (1.0 + np.abs(losses).max() - math.log(self.sampling_rate) + largest)
        stays, joins = joining.weights
        return base.times(stays, stays).plus(shifted.times(joins, joins)), base, np.array([slack])


@dataclass(frozen=True, slots=True)
class ResponsePair:
    """The pair of randomised response: P gives the first category with 1 - f + f / k, each other with f / k; Q the
    second.
    """

    categories: int  # k >= 2
    uniform_probability: float  # f, in (0, 1]

    @property
    def noise(self) -> float:
        """Scale of Laplace noise with the same largest loss."""
        return 1.0 / max(self._log_odds, float(np.finfo(float).tiny))

    @property
    def largest_loss(self) -> float:
        """Largest loss, log(1 + k (1 - f) / f): that of the first category."""
        return self._log_odds * (1.0 + 1e-12)

    def support(self, reach: float) -> tuple[float, float]:
        """Return the smallest and largest loss, in nats, over all answers."""
        return -self._log_odds, self._log_odds

    def deviation(self, direction: Direction) -> float:
        """Return the standard deviation of the loss under P, in nats."""
        return _weighted_deviation(self._losses, self._probabilities)

    def masses(self, losses: FloatArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between increasing losses, and a bound on the error of those losses, in nats."""
        cells = np.searchsorted(losses, self._losses) - 1
        p, q = np.zeros((2, losses.size - 1))
        np.add.at(p, cells, self._probabilities)
        np.add.at(q, cells, self._probabilities[::-1])
        slack, none = np.array([ROUNDING * (1.0 + self._log_odds)]), np.zeros(1)
        return Masses(none, p, none, ROUNDING * p), Masses(none, q, none, ROUNDING * q), slack

    @property
    def _log_odds(self) -> float:
        return math.log1p(self.categories * ((1.0 - self.uniform_probability) / self.uniform_probability))

    @property
    def _losses(self) -> FloatArray:
        return np.array([-self._log_odds, 0.0, self._log_odds])

    @property
    def _probabilities(self) -> FloatArray:
        lie = self.uniform_probability / self.categories
        return np.array([lie, (self.categories - 2) * lie, 1.0 - self.uniform_probability + lie])


Pair = SampledGaussian | SubsampledGaussian | SampledLaplace | ResponsePair
"""A dominating pair: noise in units of the sensitivity, largest loss, support, deviation and masses."""


@functools.lru_cache(maxsize=4096)
def pair(event: Event) -> Pair:
    """Return the pair that dominates one execution of `event`.

    Raises:
        ValueError: the event is dominated only together with a charge to delta.
    """
    match event:
        case PoissonSampledGaussian():
            return SampledGaussian(event.sampling_rate, event.noise_multiplier / event.sensitivity)
        case RowSampledGaussian():
            return SampledGaussian(
                event.sampling_rate, event.noise_multiplier / event.sensitivity, event.rows_per_person
            )
        case PoissonSampledLaplace():
            return SampledLaplace(event.sampling_rate, event.noise_multiplier / event.sensitivity)
        case RandomizedResponse():
            return ResponsePair(event.categories, event.uniform_probability)
        case FixedSizeSampledGaussian():
            sampling_rate = min(math.nextafter(event.sampling_rate, 1.0), 1.0)
            return SubsampledGaussian(sampling_rate, event.noise_multiplier / event.sensitivity)
        case TruncatedPoissonSampledGaussian():
            raise ValueError(f"{event} has no pair; account for it with `histories.untruncated`.")


class Alone(NamedTuple):
    """One pair, as `SampledGaussians` are several."""

    pair: Pair

    def take(self, places: IntArray) -> Alone:
        """Select the pair."""
        return self

    def support(self, reach: float) -> tuple[FloatArray, FloatArray]:
        """Return the smallest and the largest loss, each of shape [1]."""
        low, high = self.pair.support(reach)
        return np.array([low]), np.array([high])

    def deviations(self) -> FloatArray:
        """Return the deviation of the loss, the smaller of both directions, shape [1]."""
        return np.array([min(self.pair.deviation(direction) for direction in Direction)])

    def widths(self, losses: FloatArray, firsts: IntArray) -> FloatArray:
        """Return how far apart outcomes are, see `_widths`; NaN if the pair has no density of its own."""
        if not isinstance(self.pair, SampledGaussian):
            return np.full(losses.size - 1, np.nan)
        outcomes, _ = self.pair.outcomes(losses)
        return _widths(outcomes, np.array((self.pair.rows - 0.5) / self.pair.noise))

    def masses(self, losses: FloatArray, firsts: IntArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between increasing losses, and a bound on the error of those losses, in nats."""
        return self.pair.masses(losses)


Stacked = SampledGaussians | Alone
"""Pairs whose masses are computed together."""


def stacked(events: Sequence[Event]) -> Iterator[tuple[IntArray, Stacked]]:
    """Yield places of events whose pairs are computed together, and these pairs.

    Raises:
        ValueError: an event has no pair.
    """
    pairs = [pair(event) for event in events]
    of_one_row = {place: one for place, one in enumerate(pairs) if isinstance(one, SampledGaussian) and one.rows == 1}
    if of_one_row:
        yield np.array(list(of_one_row)), SampledGaussians.of(list(of_one_row.values()))
    for place, one in enumerate(pairs):
        if place not in of_one_row:
            yield np.array([place]), Alone(one)


def _widths(outcomes: FloatArray, offset: FloatArray) -> FloatArray:
    """Return the distance of each outcome from the next, in deviations of the noise, times one more than that of the
    farther from the farthest mean; outcomes are counted from a middle, from which the farthest mean has this offset.
    """
    farthest = np.abs(outcomes) + offset
    with np.errstate(invalid="ignore"):
        return np.asarray((outcomes[1:] - outcomes[:-1]) * (1.0 + np.maximum(farthest[1:], farthest[:-1])))


def _weighted_deviation(losses: FloatArray, weights: FloatArray) -> float:
    return float(_weighted_deviations(losses[None], weights[None])[0])


def _weighted_deviations(losses: FloatArray, weights: FloatArray) -> FloatArray:
    """Compute the standard deviation of each row."""
    weights = weights / weights.sum(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        means = (weights * losses).sum(axis=1, keepdims=True)
        return np.asarray(np.sqrt((weights * (losses - means) ** 2).sum(axis=1)))


def mixed(mixing: Mixing, log_ratios: FloatArray) -> FloatArray:
    """Return losses of a mixture at outcomes where the loss of P given that some row joins has the given values, in
    nats; one dimension.
    """
    is_near = (log_ratios < 1.0) & (mixing.some < _NEARLY_SURE)
    near, far = np.flatnonzero(is_near), np.flatnonzero(~is_near)
    losses = np.empty(log_ratios.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        losses[near] = np.log1p(_at(mixing.some, near) * np.expm1(log_ratios[near]))
        losses[far] = np.logaddexp(_at(mixing.log_none, far), _at(mixing.log_some, far) + log_ratios[far])
    return np.where(mixing.log_none == -np.inf, log_ratios, losses)


def unmixed(mixing: Mixing, losses: FloatArray) -> FloatArray:
    """Invert `mixed`; minus infinity at losses that the mixture never has.

    The inverse loses digits where the loss is flat, but there the loss hardly moves: the error in the loss, not in the
    outcome, stays at the rounding level. `near` would lose it all the same for large negative losses, which only occur
    with q close to 1: its error is multiplied by q e^-l; `far` has an error of about (1 + |l|) roundings on either
    side.
    """
    is_near = (losses >= -1.0) & (losses < 1.0)
    near, far = np.flatnonzero(is_near), np.flatnonzero(~is_near)
    log_ratios = np.empty(losses.shape)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_ratios[near] = np.expm1(losses[near]) / _at(mixing.some, near)
        log_ratios[far] = np.exp(-losses[far]) * -_at(mixing.none, far)
        log_ratios = np.log1p(np.maximum(log_ratios, -1.0, out=log_ratios), out=log_ratios)
    log_ratios[far] += losses[far] - _at(mixing.log_some, far)
    return np.where(mixing.log_none == -np.inf, losses, log_ratios)


def _at(numbers: FloatArray, places: IntArray) -> FloatArray:
    """Select the numbers of some losses; all losses may share one."""
    return numbers[places] if numbers.size > 1 else numbers


def _normal_masses(z: FloatArray, offset: FloatArray, firsts: IntArray) -> Masses:
    """Compute masses of the standard normal distribution at increasing thresholds, z moved by an offset.

    Thresholds of a distribution begin at each of `firsts`; the offset is one, or one for each threshold.
    """
    z = z + offset
    distance = np.minimum(np.abs(z), _FARTHEST)
    tails = scipy.special.erfc(distance * math.sqrt(0.5))
    tails *= 0.5
    # An error of e (|z| + offset) in z changes the tail by at most (1 + |z|) e (|z| + offset) of itself.
    distance += 1.0
    errors = distance + np.abs(offset)
    errors *= distance
    errors *= tails
    errors *= 2.0 * ROUNDING
    error = errors[1:] + errors[:-1]
    right = z > 0.0  # of the mean
    np.negative(tails, out=tails, where=right)
    inside = tails[1:] - tails[:-1]
    middles = np.flatnonzero(right[1:] & ~right[:-1])
    inside[middles] += 1.0
    error[middles] += ROUNDING
    between, lasts = firsts[1:] - 1, np.append(firsts[1:], z.size) - 1
    inside[between] = error[between] = 0.0
    of_each = np.abs(offset) if offset.ndim == 0 else np.abs(offset[firsts])
    growth = 1.0 + ROUNDING * (1.0 + _FARTHEST) * (1.0 + _FARTHEST + of_each)
    below, above = scipy.special.ndtr(z[firsts]) * growth, scipy.special.ndtr(-z[lasts]) * growth
    return Masses(below, np.maximum(inside, 0.0, out=inside), above, error)
