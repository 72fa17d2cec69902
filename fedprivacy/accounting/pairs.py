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
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

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
NO_WEIGHT = 1e-50  # probability below which a component of a mixture is left out, and counted as an infinite loss
_NEARLY_SURE = 0.999  # probability of joining from which on that of not joining would be lost in `1 - q`
MOST_NEWTON_STEPS = 50
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

    def times(self, weights: FloatArray, lengths: IntArray) -> Masses:
        """Return a share of each distribution's masses, by weights; `lengths` are the numbers of their losses."""
        of_cells = _repeat(weights, lengths)[-self.inside.size :]
        return Masses(weights * self.below, of_cells * self.inside, weights * self.above, of_cells * self.error)

    def mirror(self) -> Masses:
        """Return the masses between the same losses with the opposite sign; the last distribution comes first."""
        return Masses(self.above[::-1], self.inside[::-1], self.below[::-1], self.error[::-1])

    def merge(self, cells: IntArray) -> Masses:
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
    def single_row(cls, sampling_rates: FloatArray) -> Mixing:
        """Compute them for one row and several rates; 1 - q is correctly rounded."""
        with np.errstate(divide="ignore"):
            return cls(1.0 - sampling_rates, np.log1p(-sampling_rates), sampling_rates, np.log(sampling_rates))

    def repeat(self, lengths: IntArray | int) -> Mixing:
        """Return each pair's probabilities for all its losses."""
        return Mixing(*(_repeat(each, lengths) for each in self))


@dataclass(frozen=True, eq=False)
class Joining:
    """Probabilities that j of k rows join a Poisson sample: Binomial(k, q), correctly rounded, for each q."""

    rows: IntArray  # 0, and each j whose probability counts, with 1 unless it is impossible, shape [counts]
    weights: FloatArray  # its probability, shape [counts, pairs]
    mixing: Mixing  # probabilities that no row and that some row joins, shape [pairs]
    left_out: float = 0.0  # bound on the probability of all other j together

    @functools.cached_property
    def log_weights(self) -> FloatArray:
        """Logs of the probabilities of j > 0 rows, given that some row joins, shape [counts - 1, pairs, 1]."""
        return np.asarray(np.log(self.weights[1:]) - self.mixing.log_some)[..., None]

    @classmethod
    def single_row(cls, sampling_rates: FloatArray) -> Joining:
        """Compute the probabilities for one row and several rates."""
        mixing = Mixing.single_row(sampling_rates)
        return cls(np.arange(2), np.stack([mixing.none, mixing.some]), mixing)

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, sampling_rate: float, rows: int) -> Joining:
        """Compute the probabilities for k rows, each of which joins with probability `sampling_rate`."""
        joins, all_of_them = sampling_rate.as_integer_ratio()
        stays, whole = all_of_them - joins, all_of_them**rows
        weights = np.array([math.comb(rows, j) * joins**j * stays ** (rows - j) / whole for j in range(rows + 1)])
        counts = weights >= NO_WEIGHT
        counts[0], counts[1] = True, weights[1] > 0.0  # else its log is infinite, and the bound on a search's rest NaN
        log_none = rows * math.log1p(-sampling_rate) if stays else -math.inf
        some = np.array([(whole - stays**rows) / whole])
        mixing = Mixing(weights[:1], np.array([log_none]), some, np.log(some))
        return cls(np.flatnonzero(counts), weights[counts, None], mixing, NO_WEIGHT * float((~counts).sum()))


@dataclass(frozen=True, eq=False)
class SampledGaussians:
    """Pairs P = sum_j b_j N(j, s^2), Q = N(0, s^2), b = Binomial(k, q): several for k = 1, else one.

    For k = 1, P is (1 - q) N(0, s^2) + q N(1, s^2). The loss increases with the outcome, for every k.
    """

    sampling_rate: FloatArray  # q, in (0, 1], shape [pairs]
    noise: FloatArray  # s > 0, shape [pairs]
    rows: int = 1  # k >= 1

    @property
    def largest_loss(self) -> float:
        """Largest loss: infinite."""
        return math.inf

    def take(self, places: IntArray) -> SampledGaussians:
        """Select pairs."""
        return SampledGaussians(self.sampling_rate[places], self.noise[places], self.rows)

    def support(self, reach: float) -> FloatArray:
        """Return the smallest and largest loss, in nats, over outcomes within `reach` standard deviations of any
        component, shape [2, pairs].
        """
        last = float(self._joining.rows[-1])
        return self._losses(np.stack([-reach * self.noise, last + reach * self.noise], axis=1)).T

    def deviations(self) -> FloatArray:
        """Return the loss's standard deviations under P and, negated, under Q, in nats, roughly, shape [2, pairs]."""
        z, joining = np.linspace(-9.0, 9.0, 181), self._joining
        x = np.add(joining.rows[:, None], np.multiply.outer(self.noise, z)[:, None], dtype=np.float64)
        losses = self._losses(x.reshape(self.noise.size, -1))
        weights = np.multiply.outer(joining.weights.T, np.exp(-0.5 * z**2))
        of_p = _weighted_deviations(losses, weights.reshape(losses.shape))
        return np.stack([of_p, _weighted_deviations(losses[:, : z.size], np.exp(-0.5 * z**2))])

    def widths(self, losses: FloatArray, firsts: IntArray) -> FloatArray:
        """Return, for each loss and the next, the distance of their outcomes, in deviations of the noise, times one
        more than that of the farther outcome from the farthest mean.
        """
        outcomes, _ = self.outcomes(losses, firsts)
        farthest = np.abs(outcomes) + _repeat((self.rows - 0.5) / self.noise, _lengths(losses, firsts))
        with np.errstate(invalid="ignore"):
            return np.asarray((outcomes[1:] - outcomes[:-1]) * (1.0 + np.maximum(farthest[1:], farthest[:-1])))

    def masses(self, losses: FloatArray, firsts: IntArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between the increasing losses of each pair, which begin at each of `firsts`.

        Also returns bounds on the errors of those losses, in nats, shape [pairs].
        """
        outcomes, slack = self.outcomes(losses, firsts)
        lengths, joining, half = _lengths(losses, firsts), self._joining, 0.5 / self.noise
        base = _normal_masses(outcomes, _repeat(half, lengths), firsts)
        mixture = base.times(joining.weights[0], lengths)
        for j, weights in zip(joining.rows[1:].tolist(), joining.weights[1:], strict=True):
            component = _normal_masses(outcomes, _repeat((1 - 2 * j) * half, lengths), firsts)
            mixture = mixture.plus(component.times(weights, lengths))
        if self.rows > 1:
            sums = ROUNDING * (joining.rows.size - 2) * mixture.inside  # rounding of further sums
            mixture = replace(mixture, above=mixture.above + joining.left_out, error=mixture.error + sums)
        return mixture, base, slack

    def outcomes(self, losses: FloatArray, firsts: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the outcomes x at which the loss takes the given values, as (x - 1/2) / s, shape [losses].

        Also returns bounds, in nats, on the distance of the exact losses at returned outcomes from the wanted ones,
        shape [pairs].
        """
        lengths, mixing = _lengths(losses, firsts), self._joining.mixing
        largest = np.maximum(np.abs(losses[firsts]), np.abs(losses[firsts + lengths - 1]))
        slack = ROUNDING * (1.0 + largest - mixing.log_some + (1.0 / self.noise) ** 2)
        log_ratios = invert_mixture(mixing.repeat(lengths), losses)
        if self.rows == 1:
            log_ratios *= _repeat(self.noise, lengths)
            return log_ratios, slack
        x, left = self._solve(log_ratios)
        return (x - 0.5) / self.noise, slack + left

    def _solve(self, log_ratios: FloatArray) -> tuple[FloatArray, float]:
        """Return the outcomes with the given losses of P given that some row joins, shape [losses], by Newton's method.

        These losses are a convex, increasing function of x, and at least each of their terms: from the least x at which
        a term reaches the wanted value every step leads down, and none too far. Also returns a bound on the distance of
        the exact losses there from the wanted ones: what is left of it, and rounding.
        """
        x, left = np.full(log_ratios.shape, -np.inf), 0.0
        possible = np.flatnonzero(log_ratios > -np.inf)
        j, log_weights, square = self._joining.rows[1:, None, None], self._joining.log_weights, self.noise**2
        for part in np.array_split(possible, 1 + possible.size * self._joining.rows.size // _AT_ONCE):
            wanted = log_ratios[part]
            found = np.min(((wanted - log_weights) * square + 0.5 * j**2) / j, axis=0)
            for _ in range(MOST_NEWTON_STEPS):
                terms = self._terms(found)
                reached = np.logaddexp.reduce(terms, axis=0)
                shares = np.exp(terms - reached)
                sizes = (shares * (np.abs(log_weights) + j * (np.abs(found) + j) / square)).sum(axis=0)
                excess = reached - wanted
                if (np.abs(excess) <= ROUNDING * sizes).all():
                    break
                found = found - excess * square / (shares * j).sum(axis=0)
            x[part] = found[0]
            left = max(left, float((np.abs(excess) + ROUNDING * sizes).max(initial=0.0)))
        return x, left

    def _losses(self, x: FloatArray) -> FloatArray:
        """Compute the losses of each pair's outcomes, shape [pairs, outcomes]."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_ratios = np.logaddexp.reduce(self._terms(x), axis=0)
            return mixture_losses(self._joining.mixing.repeat(x.shape[1]), log_ratios.ravel()).reshape(x.shape)

    def _terms(self, x: FloatArray) -> FloatArray:
        """Return logs of the density ratios of P's components j > 0, with their weights given that some row joins,
        shape [components, pairs, outcomes].
        """
        j = self._joining.rows[1:, None, None].astype(np.float64)
        return np.asarray(self._joining.log_weights + (2.0 * j * x - j**2) / (2.0 * self.noise[:, None] ** 2))

    @functools.cached_property
    def _joining(self) -> Joining:
        if self.rows == 1:
            return Joining.single_row(self.sampling_rate)
        return Joining.of(float(self.sampling_rate[0]), self.rows)


class _Alone:
    """Base of a pair that is computed alone, with a density that is no sampled Gaussian's."""

    __slots__ = ()

    def take(self, places: IntArray) -> Self:
        """Select the pair."""
        return self

    def widths(self, losses: FloatArray, firsts: IntArray) -> FloatArray:
        """Return NaN for each cell, see `SampledGaussians.widths`: the loss does not follow from one outcome."""
        return np.full(losses.size - 1, np.nan)


@dataclass(frozen=True, slots=True)
class SubsampledGaussian(_Alone):
    """The pair whose hockey-stick divergences bound those of a sum over a fixed-size sample, see its event.

    With A = N(0, s^2), B = N(1, s^2) and M = (1 - g) A + g B: its losses above 0 are those of (M, A), its losses below
    0 those of (A, M), and the remaining mass has a loss of exactly 0. This is one pair: a hockey-stick divergence of
    order above 1 depends on the losses above 0 alone, one of order below 1 on those below 0 alone, and P and Q are left
    with the same mass (1 - g) (A(x < 1/2) - A(x > 1/2)), because (M, A) and (A, M) have the same total variation. It
    is its own mirror image.
    """

    poisson: SampledGaussians  # (M, A), one pair; its s is the noise's deviation over twice the clipping norm

    @property
    def noise(self) -> FloatArray:
        """The s above, shape [1]."""
        return self.poisson.noise

    @property
    def largest_loss(self) -> float:
        """Largest loss: infinite."""
        return math.inf

    def support(self, reach: float) -> FloatArray:
        """Return the smallest and largest loss, in nats, over outcomes within `reach` standard deviations of either
        component, shape [2, 1].
        """
        _, high = self.poisson.support(reach)
        return np.stack([-high, high])

    def deviations(self) -> FloatArray:
        """Return the standard deviation of the loss, in nats, about as large as that of (M, A), twice: shape [2, 1]."""
        return self.poisson.deviations()[[0, 0]]

    def masses(self, losses: FloatArray, firsts: IntArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between increasing losses, of which the middle one is 0."""
        mixture, base, slack = self.poisson.masses(losses, firsts)
        zero = losses.size // 2
        left = (1.0 - self.poisson.sampling_rate) * scipy.special.erf(math.sqrt(0.125) / self.noise)
        p, q = mixture.right_of(zero, base.mirror()), base.right_of(zero, mixture.mirror())
        for masses in (p, q):
            masses.inside[zero] += left[0]
            masses.error[zero] += ROUNDING * left[0]
        return p, q, slack


@dataclass(frozen=True, slots=True)
class SampledLaplace(_Alone):
    """The pair P = (1 - q) Lap(0, b) + q Lap(1, b), Q = Lap(0, b).

    Outcomes below 0 and above 1 have the same losses as 0 and 1: two atoms.
    """

    sampling_rate: float  # q, in (0, 1]
    noise: float  # b > 0

    @property
    def largest_loss(self) -> float:
        """Largest loss, log(1 - q + q e^(1 / b)): that of outcomes above 1 when the record is removed."""
        return float(self.support(math.inf)[1, 0]) * (1.0 + 1e-12)

    def support(self, reach: float) -> FloatArray:
        """Return the smallest and largest loss, in nats, over all outcomes, shape [2, 1]."""
        return mixture_losses(self._mixing, np.array([-1.0, 1.0]) / np.float64(self.noise))[:, None]

    def deviations(self) -> FloatArray:
        """Return the standard deviations of the loss, see `SampledGaussians.deviations`, shape [2, 1]."""
        low, high = self.support(math.inf)[:, 0]
        losses = np.linspace(low, high, 1025)
        losses[0] -= losses[-1] - losses[0]  # so that the first cell holds the atom
        p, q, _ = self.masses(losses, np.zeros(1, dtype=np.int64))
        middles = 0.5 * (losses[1:] + losses[:-1])
        middles[0] = losses[1]
        return _weighted_deviations(middles, np.stack([p.inside, q.inside]))[:, None]

    def masses(self, losses: FloatArray, firsts: IntArray) -> tuple[Masses, Masses, FloatArray]:
        """Return masses of P and of Q between increasing losses, and a bound on the error of those losses, in nats."""
        largest, mixing = 1.0 / self.noise, self._mixing
        log_ratio = invert_mixture(mixing, losses)
        inner = np.clip(log_ratio, -largest, largest)
        atoms = log_ratio < -largest, log_ratio >= largest
        # Mass of Lap(0, b) at losses beyond.
        above = np.select(atoms, [1.0, 0.0], 0.5 * np.exp(-0.5 * (inner + largest)))
        below = np.select(atoms, [0.0, 1.0], 0.5 * np.exp(0.5 * (inner - largest)))  # mass of Lap(1, b) at losses up to
        doubt = 2.0 * ROUNDING * (1.0 + largest)
        base = Masses(1.0 - above[:1], above[:-1] - above[1:], above[-1:], doubt * (above[:-1] + above[1:]))
        shifted = Masses(below[:1], below[1:] - below[:-1], 1.0 - below[-1:], doubt * (below[:-1] + below[1:]))
        slack = ROUNDING * (1.0 + np.abs(losses).max() - math.log(self.sampling_rate) + largest)
        stays, joins, lengths = mixing.none, mixing.some, _lengths(losses, firsts)
        return base.times(stays, lengths).plus(shifted.times(joins, lengths)), base, np.array([slack])

    @property
    def _mixing(self) -> Mixing:
        return Mixing.single_row(np.array([self.sampling_rate]))


@dataclass(frozen=True, slots=True)
class ResponsePair(_Alone):
    """Randomised response: P gives the first category with 1 - f + f / k, each other with f / k; Q the second."""

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

    def support(self, reach: float) -> FloatArray:
        """Return the smallest and largest loss, in nats, over all answers, shape [2, 1]."""
        return self._losses[[0, -1], None]

    def deviations(self) -> FloatArray:
        """Return the standard deviation of the loss, in nats, twice: it is its own mirror image; shape [2, 1]."""
        return np.full((2, 1), _weighted_deviations(self._losses, self._probabilities))

    def masses(self, losses: FloatArray, firsts: IntArray) -> tuple[Masses, Masses, FloatArray]:
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


Pairs = SampledGaussians | SubsampledGaussian | SampledLaplace | ResponsePair
"""Dominating pairs that are computed together, most kinds alone: noise in units of the sensitivity, largest loss,
support, deviations, widths and masses.
"""


@functools.lru_cache(maxsize=4096)
def pair(event: Event) -> Pairs:
    """Return the pair that dominates one execution of `event`.

    Raises:
        ValueError: the event is dominated only together with a charge to delta.
    """
    match event:
        case PoissonSampledGaussian():
            return _gaussian_pairs([event])
        case RowSampledGaussian():
            noise = np.array([event.noise_multiplier / event.sensitivity])
            return SampledGaussians(np.array([event.sampling_rate]), noise, event.rows_per_person)
        case PoissonSampledLaplace():
            return SampledLaplace(event.sampling_rate, event.noise_multiplier / event.sensitivity)
        case RandomizedResponse():
            return ResponsePair(event.categories, event.uniform_probability)
        case FixedSizeSampledGaussian():
            sampling_rate = min(math.nextafter(event.sampling_rate, 1.0), 1.0)
            noise = np.array([event.noise_multiplier / event.sensitivity])
            return SubsampledGaussian(SampledGaussians(np.array([sampling_rate]), noise))
        case TruncatedPoissonSampledGaussian():
            raise ValueError(f"{event} has no pair; account for it with `histories.untruncated`.")


def stack_pairs(events: Sequence[Event]) -> Iterator[tuple[IntArray, Pairs]]:
    """Yield places of events whose pairs are computed together, and these pairs.

    Raises:
        ValueError: an event has no pair.
    """
    together = {place: event for place, event in enumerate(events) if isinstance(event, PoissonSampledGaussian)}
    if len(together) > 1:
        yield np.array(list(together)), _gaussian_pairs(list(together.values()))
    for place, event in enumerate(events):
        if place not in together or len(together) == 1:
            yield np.array([place]), pair(event)


def _gaussian_pairs(events: Sequence[PoissonSampledGaussian]) -> SampledGaussians:
    noise = np.array([event.noise_multiplier / event.sensitivity for event in events])
    return SampledGaussians(np.array([event.sampling_rate for event in events]), noise)


def _weighted_deviations(losses: FloatArray, weights: FloatArray) -> FloatArray:
    """Compute standard deviations along the last axis."""
    weights = weights / weights.sum(axis=-1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        means = (weights * losses).sum(axis=-1, keepdims=True)
        return np.asarray(np.sqrt((weights * (losses - means) ** 2).sum(axis=-1)))


def mixture_losses(mixing: Mixing, log_ratios: FloatArray) -> FloatArray:
    """Return a mixture's losses, in nats, where the loss of P given that some row joins has these values; 1-D."""
    is_near = (log_ratios < 1.0) & (mixing.some < _NEARLY_SURE)
    near, far = np.flatnonzero(is_near), np.flatnonzero(~is_near)
    losses = np.empty(log_ratios.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        losses[near] = np.log1p(_at(mixing.some, near) * np.expm1(log_ratios[near]))
        losses[far] = np.logaddexp(_at(mixing.log_none, far), _at(mixing.log_some, far) + log_ratios[far])
    return np.where(mixing.log_none == -np.inf, log_ratios, losses)


def invert_mixture(mixing: Mixing, losses: FloatArray) -> FloatArray:
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


def _lengths(losses: FloatArray, firsts: IntArray) -> IntArray:
    """Return how many losses there are of each pair; they begin at each of `firsts`."""
    return np.asarray(np.append(firsts[1:], losses.size) - firsts)


def _repeat(numbers: FloatArray, lengths: IntArray | int) -> FloatArray:
    """Return each pair's number for all its losses; that of one pair alone stands for all of them."""
    return numbers.repeat(lengths) if numbers.size > 1 else numbers


def _at(numbers: FloatArray, places: IntArray) -> FloatArray:
    """Select the numbers of some losses; all losses may share one."""
    return numbers[places] if numbers.size > 1 else numbers


def _normal_masses(z: FloatArray, offset: FloatArray, firsts: IntArray) -> Masses:
    """Compute masses of the standard normal distribution at increasing thresholds, z moved by an offset.

    Thresholds of a distribution begin at each of `firsts`; the offset is one, of one distribution, or one for each
    threshold.
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
    growth = 1.0 + ROUNDING * (1.0 + _FARTHEST) * (1.0 + _FARTHEST + np.abs(offset[firsts]))
    below, above = scipy.special.ndtr(z[firsts]) * growth, scipy.special.ndtr(-z[lasts]) * growth
    return Masses(below, np.maximum(inside, 0.0, out=inside), above, error)
