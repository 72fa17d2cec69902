"""Epsilon by a contour integral: the second implementation, which checks the PLD and answers for many clients at once.

Nothing is put on a grid of losses and no code is shared with `pld`, so that an error in one would show in the other.
Both are upper bounds; this one is within about 1e-6 of delta:

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> round(epsilon({PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=4.0): 10_000}, delta=1e-5), 3)
0.947
>>> epsilons([0.01, 0.02], [4.0, 1.0], [10_000, 500], delta=1e-5).round(3)
array([0.947, 2.773])

Method, for each direction; the larger epsilon counts. With M(z) = E[e^(z L)] of one execution's privacy loss L,

    delta(eps) = 1 / (2 pi) * integral over w of M(z)^n e^(-z eps) / (z (z + 1)),   z = lambda + i w, lambda > 0,

(Alghamdi et al. 2023, ICML; for several events M^n is a product). lambda is near the saddle point, which makes errors
*relative* to delta. M(z) = E[(1 + u)^p], u = q (e^(t/s - 1/(2 s^2)) - 1), t standard normal: p = 1 + z where the record
is removed; p = -z where it is added, for which the conjugate is computed.

Formal guarantee, up to the rounding of floating-point numbers; the proofs are in docs/explanation/contour.md.

- *Frequencies w.* The trapezoid rule of step 2 pi / W returns sum_m e^(lambda m W) delta(eps + m W) over all integers
  m: delta(eps) plus terms that are never negative.
- *Frequencies left out.* Moving the line of integration over t by i y multiplies the integrand by at most
  e^(y^2 / 2 - w arg(1 + u)), arg >= 0: the integral of that bounds |M| from any frequency on, and is charged to delta.
- *Outcomes beyond a cut*, of which n executions produce one with a chance of at most 1e-7 delta, count as failures.
- *Quadrature over t.* On the moved line, the integrand is bounded in a strip uniformly in w, so that the trapezoid rule
  errs by at most a constant times M(lambda), chosen to be 1e-15 (Trefethen, Weideman 2014, Theorem 5.1). It is charged.

What is charged depends on epsilon by the factor e^(-lambda eps) only: some epsilon is always certified. It is far from
tight where lambda cannot reach the saddle point or frequencies run out: one to three executions with q below 1e-3, or
delta below 1e-12 where a rare execution may cost much; and for noise multipliers below 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri, xlogy

from fedprivacy.accounting.arrays import Aligned, BoolArray, ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.gdp import gaussians
from fedprivacy.accounting.histories import check_delta
from fedprivacy.values.events import History

_NEGLIGIBLE = math.log(1e-7)  # log of the share of delta that aliases, and the frequencies left out, may cost each
_LEAST_NOISE = 0.01  # noise multiplier; under it, sampling is ignored, which is sound and far from tight
_UNSAMPLED = 1.0 - 1e-9  # sampling rate; from it on, 1 - q has lost too many digits, and 1 takes its place
_MOST_FREQUENCIES = 2**15
_REACH = 9.0  # R, standard deviations of t from the outer peaks of the integrand to the ends of the nodes
_STRIP = 37.0  # minus the log of the quadrature error, relative to M(lambda)
_FURTHEST_SHIFT = 2.0  # y; a further one would multiply rounding errors by more than e^2
_WIDEST_ANGLE = math.pi / 4.0  # y / s; up to twice it, arg(1 + u) grows with the angle
_ROUNDING = 2.0**-52
_WINDOW_STEPS = 12  # of an iteration that may end at any time
_MOST_ITERATIONS = 60
_EXACT = 1e-7  # relative distance to delta at which the search for epsilon ends
_MOST_CLIENTS = 256  # whose integrands are evaluated together
_MOST_NUMBERS = 2**20  # frequencies, of all these clients
_LARGEST_TILT = 2.0**16
_OCTAVES = 0.05 * np.arange(14, -1, -1) + 0.02 * np.arange(14, -1, -1) ** 2  # of a profile's tilts, below the highest
_TOP = 3.0  # by which the log of the chance of the tilted mean exceeds that of the negligible, at the highest tilt
_BEYOND_CUT = 30.0  # standard deviations past a cut within which the integrand has to become negligible
_TILT_HALVINGS = 10  # of the bracket of the highest tilt
_LOG_MAGNIFICATION = 4.0  # nats by which errors may exceed the least possible, to shorten the period
_MOST_PLANS = 6
_WORTHWHILE = 1e-3  # relative improvement of an epsilon that pays for another plan
_LOOSE = math.log(1e-5)  # log of the share of delta from which charges matter
_GENEROUS = 16.0  # roundings of a sum of positive terms
_TINY = float(np.finfo(float).tiny)
_LARGEST_EXPONENT = 700.0  # whose exponential is a floating-point number
_LOG_ROOT_TAU = 0.5 * math.log(2.0 * math.pi)


def epsilon(history: History, delta: float) -> float:
    """Upper bound on the epsilon of a history at `delta`; 0 for an empty history.

    Args:
        history: how often each event was executed, under one neighbouring relation.
        delta: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; infinite only if nothing is proved.

    Raises:
        ValueError: delta is outside (0, 1), or the history mixes neighbouring relations or holds another event than
            `PoissonSampledGaussian`.
    """
    check_delta(delta)
    executed = gaussians(history)
    if not executed:
        return 0.0
    rates = np.array([[event.sampling_rate for event in executed]])
    noises = np.array([[event.noise_multiplier / event.sensitivity for event in executed]])
    counts = np.array([list(executed.values())], dtype=np.float64)
    return float(_upper_bounds(_Batch.of(rates, noises, counts, np.array([delta])))[0])


def epsilons(sampling_rates: ArrayLike, noise_multipliers: ArrayLike, steps: ArrayLike, delta: ArrayLike) -> FloatArray:
    """Upper bounds on the epsilons of many clients, each of which repeated one Poisson-sampled Gaussian.

    Args:
        sampling_rates: q of every client, in (0, 1], shape [clients].
        noise_multipliers: sigma of every client, in units of the sensitivity, positive and finite, shape [clients].
        steps: number of executions of every client, integers >= 0, shape [clients].
        delta: probability in (0, 1), shape [clients]; any of the four may be one number for all.

    Returns:
        Epsilons in nats, >= 0, shape [clients]; infinite only if nothing is proved. Other clients of the batch change
        an epsilon by 1e-5 of itself at most.

    Raises:
        ValueError: an argument is out of range.
    """
    given = [np.asarray(values, dtype=np.float64) for values in (sampling_rates, noise_multipliers, steps, delta)]
    rates, noises, counts, deltas = (np.atleast_1d(values) for values in np.broadcast_arrays(*given))
    _check("sampling_rate", rates, (rates > 0.0) & (rates <= 1.0), "choose a probability in (0, 1]")
    _check("noise_multiplier", noises, (noises > 0.0) & np.isfinite(noises), "choose a positive, finite number")
    whole = (counts >= 0.0) & np.isfinite(counts) & (counts == np.floor(counts))
    _check("steps", counts, whole, "choose an integer of at least 0")
    _check("delta", deltas, (deltas > 0.0) & (deltas < 1.0), "choose a probability in (0, 1)")
    return _upper_bounds(_Batch.of(rates[:, None], noises[:, None], counts[:, None], deltas))


def _check(name: str, values: FloatArray, valid: BoolArray, remedy: str) -> None:
    if not valid.all():
        raise ValueError(f"{name} is {values[~valid][0]}; {remedy}.")


@dataclass(frozen=True, slots=True, eq=False)
class _Batch(Aligned):
    """Histories of equally many events each."""

    rates: FloatArray  # sampling rates q, shape [clients, events]
    noises: FloatArray  # noise multipliers s, in units of the sensitivity, shape [clients, events]
    counts: FloatArray  # executions, shape [clients, events]
    log_delta: FloatArray  # shape [clients]
    # Outcomes t of which the larger ones, over all executions, are a negligible share of delta; infinite where a record
    # is added, shape [clients, events].
    cuts: FloatArray

    @classmethod
    def of(cls, rates: FloatArray, noises: FloatArray, counts: FloatArray, deltas: FloatArray) -> _Batch:
        """Raises the sampling rate to 1 where that is the sound way out: a larger rate dominates a smaller one."""
        unsampled = (rates >= _UNSAMPLED) | (noises < _LEAST_NOISE)
        rates = np.where(unsampled, 1.0, rates)
        share = 0.5 * math.exp(_NEGLIGIBLE) * deltas[:, None] / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        # (1 - q) P(t > cut) + q P(t > cut - 1 / s) <= 2 share, t standard normal
        cuts = np.maximum(-ndtri(share), 1.0 / noises - ndtri(np.minimum(share / rates, 0.5)))
        return cls(rates, noises, counts, np.log(deltas), cuts)

    def directed(self, remove: bool) -> _Batch:
        """For one direction: delta is less what the outcomes beyond the cuts may cost."""
        if not remove:
            return replace(self, cuts=np.full(self.cuts.shape, np.inf))
        return replace(self, log_delta=self.log_delta + math.log1p(-math.exp(_NEGLIGIBLE)))

    def composed(self, values: FloatArray) -> FloatArray:
        """Sum over the executions of what is given for each event: [clients, events, ...] to [clients, ...]."""
        counts = self.counts.reshape(self.counts.shape + (1,) * (values.ndim - 2))
        return np.asarray((counts * values).sum(axis=1))


def _upper_bounds(batch: _Batch) -> FloatArray:
    """The larger epsilon of both directions, shape [clients].

    delta(0) is a total variation distance, which n executions multiply by n at most: where that is delta or less,
    epsilon is 0 and nothing else needs computing. It also sees to clients that executed nothing.
    """
    bounds = np.zeros(batch.log_delta.shape)
    distances = batch.composed(batch.rates * (2.0 * ndtr(0.5 / batch.noises) - 1.0))
    costly = np.flatnonzero(distances > np.exp(batch.log_delta))
    for clients in _alike(costly, batch.noises.min(axis=1)):
        part = batch.take(clients)
        with np.errstate(over="ignore", invalid="ignore"):  # then nothing is proved, and infinity is the bound
            directed = [_directed_bounds(part.directed(remove), remove) for remove in (True, False)]
        bounds[clients] = np.maximum(*directed)
    return bounds


def _alike(clients: IntArray, sizes: FloatArray) -> Iterator[IntArray]:
    """`clients` in groups whose sizes differ two-fold at most; `sizes` has shape [all clients]."""
    ordered = clients[np.argsort(sizes[clients], kind="stable")]
    while ordered.size:
        group = int(np.searchsorted(sizes[ordered], 2.0 * sizes[ordered[0]], side="right"))
        group = max(1, min(group, _MOST_CLIENTS, int(_MOST_NUMBERS / sizes[ordered[group - 1]])))
        yield ordered[:group]
        ordered = ordered[group:]


def _directed_bounds(batch: _Batch, remove: bool) -> FloatArray:
    """Upper bounds on epsilon in one direction, shape [clients].

    Where a rare execution may cost much, the first plan is made for too large an epsilon: then another is made, around
    the bound that was found.
    """
    profile = _Profile.of(batch, remove)
    bounds = np.full(batch.log_delta.shape, np.inf)
    sought, guesses = np.arange(bounds.size), profile.guesses(batch.log_delta)
    for attempt in range(_MOST_PLANS):
        part = batch.take(sought)
        plan = _Plan.of(part, profile.take(sought), guesses[sought], remove, largest=attempt % 2 == 1)
        found, loose = np.empty(sought.size), np.empty(sought.size, dtype=np.bool_)
        for clients in _alike(np.arange(sought.size), plan.frequencies.astype(np.float64)):
            found[clients], loose[clients] = _solved(part.take(clients), plan.take(clients), remove)
        improved = found < bounds[sought] * (1.0 - _WORTHWHILE)
        bounds[sought] = np.minimum(bounds[sought], found)
        guesses[sought] = bounds[sought]
        sought = sought[loose & (improved | (attempt == 0))]
        if sought.size == 0:
            break
    return bounds


@dataclass(frozen=True, slots=True, eq=False)
class _Profile(Aligned):
    """What decides on a plan: the composed loss under several tilts. To some six digits; it decides tightness only."""

    tilts: FloatArray  # lambda, increasing, shape [clients, tilts]
    log_mgfs: FloatArray  # n log M(lambda), same shape
    means: FloatArray  # of the tilted loss, in nats, same shape
    variances: FloatArray  # of the tilted loss, same shape

    @classmethod
    def of(cls, batch: _Batch, remove: bool) -> _Profile:
        """From the highest useful tilt down, densest below it, where the cumulants may change most."""
        tilts = _highest_tilts(batch, remove)[:, None] * 2.0**-_OCTAVES
        columns = [_cumulants(batch, tilts[:, j], remove) for j in range(_OCTAVES.size)]
        log_mgfs, means, variances = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
        return cls(tilts, log_mgfs, means, variances)

    def guesses(self, log_delta: FloatArray) -> FloatArray:
        """Epsilons by the saddle-point approximation, shape [clients]; not above those of Chernoff's bound."""
        t = self.tilts
        log_kernel = np.log(t * (1.0 + t))
        epsilons = self.means - 1.0 / t - 1.0 / (1.0 + t)
        curvatures = self.variances + t**-2.0 + (1.0 + t) ** -2.0
        log_deltas = self.log_mgfs - t * epsilons - log_kernel - 0.5 * np.log(2.0 * np.pi * curvatures)
        at = np.argmin(np.where(epsilons > 0.0, np.abs(log_deltas - log_delta[:, None]), np.inf), axis=1)[:, None]
        near = epsilons + (log_deltas - log_delta[:, None]) / t
        log_chernoff = self.log_mgfs + xlogy(t, t) - xlogy(1.0 + t, 1.0 + t)
        chernoff = ((log_chernoff - log_delta[:, None]) / t).min(axis=1)
        return np.asarray(np.clip(np.take_along_axis(near, at, axis=1)[:, 0], 0.0, np.maximum(chernoff, 0.0)))

    def chosen(self, log_delta: FloatArray, epsilons: FloatArray, largest: bool) -> tuple[FloatArray, FloatArray]:
        """The tilts with the shortest periods W among those close to the saddle point, and W, in nats; both [clients].

        Or the `largest` of these tilts, under which a rare but large loss outweighs all the small ones, whose
        transform would hardly fall with the frequency.

        After a period W of z = lambda + i w, aliases are a negligible share of delta. Chernoff:
        e^(lambda m W) delta(eps + m W) <= e^(K(v) - v eps - (v - lambda) m W) v^v / (1 + v)^(1 + v), for m > 0 with any
        v > lambda, for m < 0 with any v < lambda, K(v) = n log M(v), K(0) = 0.
        """
        t, eps = self.tilts, epsilons[:, None]
        magnified = self.log_mgfs - t * eps - np.log(t * (1.0 + t))
        excess = self.log_mgfs - t * eps + xlogy(t, t) - xlogy(1.0 + t, 1.0 + t) - log_delta[:, None] - _NEGLIGIBLE
        others = np.concatenate([np.zeros((t.shape[0], 1)), t], axis=1)
        excess = np.concatenate([-log_delta[:, None] - _NEGLIGIBLE, excess], axis=1)
        gaps = others[:, None, :] - t[:, :, None]
        ratios = excess[:, None, :] / np.where(gaps == 0.0, np.nan, np.abs(gaps))
        to_the_right = np.where(gaps > 0.0, ratios, np.inf).min(axis=2)
        to_the_left = np.where(gaps < 0.0, ratios, np.inf).min(axis=2)
        periods = np.maximum(np.maximum(to_the_right, to_the_left), 1.0 / t)
        # The largest tilt's period is not bounded: no larger one bounds its aliases.
        magnified = np.where(np.isfinite(periods), magnified, np.inf)
        close = magnified <= magnified.min(axis=1, keepdims=True) + _LOG_MAGNIFICATION
        at = np.argmin(np.where(close, -t if largest else periods, np.inf), axis=1)[:, None]
        period = np.take_along_axis(periods, at, axis=1)[:, 0]
        tilts = np.take_along_axis(t, at, axis=1)[:, 0]
        return tilts, np.where(np.isfinite(period), period, -log_delta / tilts)


def _highest_tilts(batch: _Batch, remove: bool) -> FloatArray:
    """Tilts up to which it can be of use to look, to 2 % and from below, shape [clients].

    The loss exceeds its mean K'(lambda) under the tilt lambda with a chance of about e^(K - lambda K'), whose logarithm
    is quadratic in lambda if the loss is Gaussian: at `_TOP` times that of the negligible, lambda is about twice what
    delta asks for. Where a record is removed, (1 + u)^p is dominated by its right tail from about 2 s^2 log(1 / q) on,
    and K explodes: a geometric sequence of tilts could step over the last useful one.
    """
    enough = _TOP * (-batch.log_delta - _NEGLIGIBLE)
    turns = 2.0 * batch.noises**2 * -np.log(batch.rates) + batch.noises * np.sqrt(2.0 * enough)[:, None] + 1.0
    upper = np.log(np.minimum(64.0 * turns.min(axis=1), _LARGEST_TILT))
    lower = np.minimum(-0.5 * np.log(batch.composed(batch.noises**-2.0)), upper - 1.0)
    for _ in range(_TILT_HALVINGS):
        middle = 0.5 * (lower + upper)
        log_mgfs, means, _ = _cumulants(batch, np.exp(middle), remove)
        small = np.isfinite(log_mgfs) & (np.exp(middle) * means - log_mgfs < enough)
        lower, upper = np.where(small, middle, lower), np.where(small, upper, middle)
    return np.asarray(np.exp(lower))


def _cumulants(batch: _Batch, tilts: FloatArray, remove: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """n log M(lambda), and mean and variance of the composed loss under that tilt, each of shape [clients]."""
    powers = _powers(tilts, remove)
    spacing = 0.7 * np.minimum(1.0, _smoothness(batch))
    _, losses, log_terms, lost = _nodes(batch, powers, spacing)
    largest = log_terms.max(axis=2, keepdims=True)
    weights = np.exp(log_terms - largest)
    totals = weights.sum(axis=2)
    log_mgfs = np.where(lost, np.inf, largest[:, :, 0] + np.log(totals * spacing))
    means = (weights * losses).sum(axis=2) / totals
    variances = (weights * (losses - means[:, :, None]) ** 2).sum(axis=2) / totals
    signed = means if remove else -means
    return batch.composed(log_mgfs), batch.composed(signed), batch.composed(np.maximum(variances, _TINY))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan(Aligned):
    """Where the integral over w is evaluated. Any plan yields an upper bound; this one is tight; shapes [clients]."""

    tilts: FloatArray  # lambda, real part of z
    spacings: FloatArray  # step 2 pi / W of the trapezoid rule
    frequencies: IntArray  # number K of positive frequencies w; a positive integer
    log_tails: FloatArray  # log of a bound on what the frequencies beyond K add, as a share of M(lambda)^n
    guesses: FloatArray  # epsilon, roughly

    @classmethod
    def of(cls, batch: _Batch, profile: _Profile, guesses: FloatArray, remove: bool, largest: bool) -> _Plan:
        """For the epsilons that are guessed, with as many frequencies as make the others negligible."""
        tilts, periods = profile.chosen(batch.log_delta, guesses, largest)
        spacings = 2.0 * np.pi / periods
        quadrature = _Quadrature.of(batch, tilts, remove)
        deviations = quadrature.deviations()
        # Relative to delta: the integral is e^(n log M - lambda eps) times what is summed.
        log_mgf = batch.composed(quadrature.log_mgf)
        negligible = _NEGLIGIBLE + batch.log_delta - log_mgf + tilts * guesses
        furthest = _MOST_FREQUENCIES * spacings
        last = np.minimum(4.0 / np.sqrt(batch.composed(deviations**2)), furthest)
        log_tails = np.empty(tilts.shape)
        sought = np.arange(tilts.size)
        while sought.size:
            at = last[sought]
            tails = quadrature.take(sought).log_tail(
                batch.take(sought), tilts[sought], at, at[:, None] * deviations[sought]
            )
            log_tails[sought] = tails
            # Where the loss is Gaussian, the log of the tail falls with the square of the frequency.
            whole = np.log(0.5 / tilts[sought])
            progress = (whole - tails) / (whole - negligible[sought])
            growth = np.clip(1.02 / np.sqrt(np.maximum(progress, 0.1)), 1.05, 2.0)
            missing = (tails > negligible[sought]) & (at < furthest[sought])
            sought, growth = sought[missing], growth[missing]
            last[sought] = np.minimum(last[sought] * growth, furthest[sought])
        return cls(tilts, spacings, np.ceil(last / spacings).astype(np.int64), log_tails, guesses)


def _powers(tilts: FloatArray, remove: bool) -> FloatArray:
    """Real part of the power p of 1 + u whose mean is M(lambda + i w)."""
    return 1.0 + tilts if remove else -tilts


def _smoothness(batch: _Batch) -> FloatArray:
    """s, in units of which the singularities of log(1 + u) are pi away; without sampling there are none."""
    return np.where(batch.rates == 1.0, np.inf, batch.noises)


def _losses(batch: _Batch, t: FloatArray) -> FloatArray:
    """log(1 + u), shape [clients, events, nodes]."""
    q, s = batch.rates[:, :, None], batch.noises[:, :, None]
    log_ratio = t / s - 0.5 / s**2
    with np.errstate(divide="ignore"):
        near = np.log1p(q * np.expm1(np.minimum(log_ratio, 1.0)))
        far = np.logaddexp(np.log1p(-q), np.log(q) + log_ratio)
    return np.where(q == 1.0, log_ratio, np.where(log_ratio < 1.0, near, far))


def _shares(batch: _Batch, t: FloatArray) -> FloatArray:
    """r = q e^(t/s - 1/(2 s^2)) / (1 + u), shape [clients, events, nodes]."""
    with np.errstate(divide="ignore"):
        log_odds = np.log(batch.rates) - np.log1p(-batch.rates) - 0.5 / batch.noises**2
    return np.asarray(expit(t / batch.noises[:, :, None] + log_odds[:, :, None]))


def _window(batch: _Batch, powers: FloatArray) -> tuple[FloatArray, FloatArray]:
    """An interval of t, ends of shape [clients, events], outside which e^(-t^2/2) (1 + u)^p falls by e^(-R |dt|).

    Its logarithm has the slope -t + p r(t) / s, r increasing from 0 to 1. For p > 0, iterating t <- R + p r(t) / s from
    R + p / s approaches the largest t of slope -R from above, t <- -R + p r(t) / s from -R the smallest one of slope R
    from below. For p <= 0 the slope falls at least as fast as -t, so that R beyond its zero will do.
    """
    bound = (powers[:, None] / batch.noises)[:, :, None]
    rising = bound > 0.0
    margins = np.where(rising, np.array([-_REACH, _REACH]), 0.0)
    ends = margins + np.concatenate([np.minimum(bound, 0.0), np.maximum(bound, 0.0)], axis=2)
    for _ in range(_WINDOW_STEPS):
        points = np.where(rising, ends, 0.5 * (ends[:, :, :1] + ends[:, :, 1:]))
        next_points = margins + bound * _shares(batch, points)
        left = next_points[:, :, :1] < points[:, :, :1]  # the zero is left of the middle
        halves = np.where(np.concatenate([~left, left], axis=2), points, ends)
        ends = np.where(rising, next_points, halves)
    ends = np.where(rising, ends, ends + np.array([-_REACH, _REACH]))
    return ends[:, :, 0], ends[:, :, 1]


def _nodes(
    batch: _Batch, powers: FloatArray, spacing: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
    """The trapezoid rule for E[(1 + u)^p].

    Terms from the first on that is negligible and past `batch.cuts` are left out, which counts outcomes beyond it as
    failures. E[(1 + u)^p] explodes where p is so large that its terms rise again, for outcomes that hardly exist; that
    would forbid the tilts that small deltas need.

    Returns t; log(1 + u) there; the logarithms of the terms, over the spacing, all of shape [clients, events, nodes];
    and whether the terms do not become negligible in time, which makes p useless, shape [clients, events].
    """
    low, high = _window(batch, powers)
    limit = batch.cuts + _BEYOND_CUT
    count = max(math.ceil(float(((np.minimum(high, limit) - low) / spacing).max())), 1) + 1
    t = low[:, :, None] + spacing[:, :, None] * np.arange(count)
    losses = _losses(batch, t)
    log_terms = powers[:, None, None] * losses - 0.5 * t**2 - _LOG_ROOT_TAU
    negligible = log_terms < np.maximum.accumulate(log_terms, axis=2) - _STRIP - _REACH
    past = np.logical_or.accumulate(negligible & (t > batch.cuts[:, :, None]), axis=2)
    lost = (high > limit) & ~past[:, :, -1]
    return t, losses, np.where(past, -np.inf, log_terms), lost


@dataclass(frozen=True, slots=True, eq=False)
class _Quadrature(Aligned):
    """The trapezoid rule over t, on the real line, normalised by its result."""

    log_mgf: FloatArray  # log M(lambda) of one execution, as computed, shape [clients, events]
    t: FloatArray  # nodes, shape [clients, events, nodes]
    losses: FloatArray  # log(1 + u), same shape
    shares: FloatArray  # r, same shape
    log_weights: FloatArray  # log of the terms of the rule for M(lambda), over `log_mgf`, same shape
    powers: FloatArray  # real part of the power of 1 + u, shape [clients]
    widest: FloatArray  # furthest shift y of the line of integration, shape [clients, events]
    # Bound on the error of the rule, and on what lies beyond the nodes, on any line shifted by at most `widest`
    # and at any frequency, as a share of M(lambda); without rounding, shape [clients, events].
    error: FloatArray

    @classmethod
    def of(cls, batch: _Batch, tilts: FloatArray, remove: bool) -> _Quadrature:
        """With the spacing at which the strip bound of docs/explanation/contour.md is 2 e^-`_STRIP`."""
        powers = _powers(tilts, remove)
        falling = np.maximum(-powers, 0.0)[:, None]
        smoothness = _smoothness(batch)
        angle = np.minimum(_WIDEST_ANGLE, 4.0 / np.sqrt(np.maximum(falling, 1.0)))
        widest = np.minimum(_FURTHEST_SHIFT, angle * smoothness)
        log_growth = 2.0 * widest**2 - falling * np.log(np.cos(widest / smoothness))
        spacing = 2.0 * np.pi * widest / (_STRIP + log_growth)
        t, losses, log_terms, lost = _nodes(batch, powers, spacing)
        largest = log_terms.max(axis=2)
        log_sum = largest + np.log(np.exp(log_terms - largest[:, :, None]).sum(axis=2))
        log_weights = log_terms - log_sum[:, :, None]
        weights = np.exp(log_weights)
        at = np.where(weights > 0.0, np.arange(t.shape[2]), 0).max(axis=2, keepdims=True)
        last = np.take_along_axis(weights, at, axis=2)[:, :, 0]
        # Past the last term: the one left out is negligible, and where it is not, the slope is at most p / s.
        rise = np.where(lost, np.exp(np.minimum(powers[:, None] / batch.noises * spacing, _LARGEST_EXPONENT)), 2.0)
        ends = weights[:, :, 0] + rise * last + math.exp(-_STRIP - _REACH)
        edges = (7.0 * widest + 1.0 / _REACH) * ends / spacing
        error = 2.1 * math.exp(-_STRIP) + np.exp(log_growth) * edges
        log_mgf = log_sum + np.log(spacing)
        return cls(log_mgf, t, losses, _shares(batch, t), log_weights, powers, widest, error)

    def deviations(self) -> FloatArray:
        """Standard deviation of one execution's tilted loss, in nats, shape [clients, events]."""
        weights = np.exp(self.log_weights)
        means = (weights * self.losses).sum(axis=2, keepdims=True)
        return np.asarray(np.sqrt(np.maximum((weights * (self.losses - means) ** 2).sum(axis=2), _TINY)))

    def shifted(self, batch: _Batch, shifts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """log|1 + u| on the line t + i y, less log(1 + u) on the real line, and arg(1 + u); [clients, events, nodes].

        With the angle a = y / s, 1 + u is multiplied by 1 - r + r e^(i a). The `shifts` y have shape [clients, events].
        """
        angles = (shifts / batch.noises)[:, :, None]
        r = self.shares
        if_sampled = 0.5 * np.log1p(-4.0 * r * (1.0 - r) * np.sin(0.5 * angles) ** 2)
        argument = np.arctan2(r * np.sin(angles), 1.0 - 2.0 * r * np.sin(0.5 * angles) ** 2)
        sampled = batch.rates[:, :, None] < 1.0
        return np.where(sampled, if_sampled, 0.0), np.where(sampled, argument, angles)

    def log_tail(self, batch: _Batch, tilts: FloatArray, last: FloatArray, shifts: FloatArray) -> FloatArray:
        """Log of a bound on the integral over |w| > `last` of |M^n / (z (z + 1))| / (2 pi), over M(lambda)^n.

        Shape [clients]. |M| is bounded on the line shifted by `shifts` y, capped here, shape [clients, events].
        """
        y = np.minimum(shifts, self.widest)
        change, argument = self.shifted(batch, y)
        exponents = self.powers[:, None, None] * change - last[:, None, None] * argument + 0.5 * y[:, :, None] ** 2
        bounds = np.exp(self.log_weights + exponents).sum(axis=2) * (1.0 + _GENEROUS * _ROUNDING) + self.error
        kernel = np.arctan2(tilts, last) / tilts  # the integral of 1 / (lambda^2 + w^2) from `last` on
        decay = np.minimum(batch.composed(np.log(bounds)), batch.composed(np.log1p(self.error)))  # |M(z)| <= M(lambda)
        return np.asarray(decay + np.log(kernel / np.pi))


def _integrand(batch: _Batch, plan: _Plan, remove: bool) -> tuple[ComplexArray, FloatArray, FloatArray]:
    """The terms of the trapezoid rule over w, n log M(lambda), and the charges for errors and for what was left out.

    delta(eps) <= M(lambda)^n e^(-lambda eps) (Re sum_k terms_k e^(-i w_k eps) + charges), the terms of shape [clients,
    frequencies]. For errors of the powers, |(x + e)^n - x^n| <= (|x| + |e|)^n - |x|^n is charged.
    """
    quadrature = _Quadrature.of(batch, plan.tilts, remove)
    transforms, doubts = _transforms(batch, plan, quadrature)
    if not remove:
        transforms = transforms.conj()
    magnitudes = np.maximum(np.abs(transforms), _TINY)
    log_powers, angles = batch.composed(np.log(magnitudes)), batch.composed(np.angle(transforms))
    log_doubts = np.minimum(batch.composed(np.log1p(doubts / magnitudes)), _LARGEST_EXPONENT)
    index = np.arange(transforms.shape[2])
    z = plan.tilts[:, None] + 1j * plan.spacings[:, None] * index
    # Both signs of w count, with conjugate terms.
    share = np.where(index == 0, 1.0, 2.0) * plan.spacings[:, None] / (2.0 * np.pi)
    share = np.where(index <= plan.frequencies[:, None], share, 0.0)
    terms = np.asarray(share * np.exp(log_powers + 1j * angles) / (z * (z + 1.0)), dtype=np.complex128)
    doubtful = share * np.exp(log_powers) * np.expm1(log_doubts) / np.abs(z * (z + 1.0))
    return terms, batch.composed(quadrature.log_mgf), doubtful.sum(axis=1) + np.exp(plan.log_tails)


def _transforms(batch: _Batch, plan: _Plan, quadrature: _Quadrature) -> tuple[ComplexArray, FloatArray]:
    """E[(1 + u)^(p + i w)] / M(lambda) for w = 0, h, 2 h, ... and bounds on its errors, rounding included.

    Integrated on the furthest line t + i y, where the integrand falls with w instead of oscillating. Powers of
    (1 + u)^(i h), of modulus at most 1, take the place of as many complex exponentials. Both of shape [clients, events,
    frequencies].
    """
    y = quadrature.widest[:, :, None]
    change, argument = quadrature.shifted(batch, quadrature.widest)
    powers, spacings = quadrature.powers[:, None, None], plan.spacings[:, None, None]
    log_modulus = quadrature.log_weights + 0.5 * y**2 + powers * change
    terms = np.exp(log_modulus + 1j * (powers * argument - quadrature.t * y))
    factors = np.exp(spacings * (1j * (quadrature.losses + change) - argument))
    size = np.abs(terms).sum(axis=2)
    transforms = np.empty((*size.shape, int(plan.frequencies.max()) + 1), dtype=np.complex128)
    for k in range(transforms.shape[2]):
        transforms[:, :, k] = terms.sum(axis=2)
        terms *= factors
    rounding = _ROUNDING * (_GENEROUS + np.arange(transforms.shape[2])) * size[:, :, None]
    return transforms, quadrature.error[:, :, None] + rounding


def _solved(batch: _Batch, plan: _Plan, remove: bool) -> tuple[FloatArray, BoolArray]:
    """The smallest epsilon that the integral certifies, to `_EXACT` of delta, and whether it is loose; both [clients].

    Loose: charges matter there, or the plan was made for a much larger one. Newton's method on the log of the bound,
    within a bracket: its upper end is certified at any time, at first because no term exceeds its modulus.
    """
    integrand, log_scales, charges = _integrand(batch, plan, remove)
    most = np.abs(integrand).sum(axis=1) + charges
    high = np.maximum((log_scales + np.log(most) - batch.log_delta) / plan.tilts, 0.0)
    epsilons = low = np.zeros(high.shape)
    frequencies = plan.spacings[:, None] * np.arange(integrand.shape[1])
    for iteration in range(_MOST_ITERATIONS):
        terms = integrand * np.exp(-1j * frequencies * epsilons[:, None])
        values = np.maximum(terms.real.sum(axis=1), 0.0) + charges
        slopes = -plan.tilts + (frequencies * terms.imag).sum(axis=1) / values
        excess = log_scales - plan.tilts * epsilons + np.log(values) - batch.log_delta
        enough = excess <= 0.0
        high, low = np.where(enough, np.minimum(epsilons, high), high), np.where(enough, low, epsilons)
        if np.all((high <= low) | (enough & ((excess >= -_EXACT) | (epsilons == 0.0)))):
            break
        newton = plan.guesses if iteration == 0 else epsilons - (excess + 0.5 * _EXACT) / slopes
        inside = (newton > low) & (newton < high)
        epsilons = np.where(inside, newton, 0.5 * (low + high))
    log_share = log_scales - plan.tilts * high + np.log(charges) - batch.log_delta
    return high, (log_share > _LOOSE) | (plan.tilts * (plan.guesses - high) > 1.0)
