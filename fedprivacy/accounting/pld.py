"""Epsilon from the privacy loss distribution (PLD): the guarantee that clients are told.

Composition adds independent privacy losses, so the distribution of the sum is a power (for several events: a product)
of Fourier transforms. Every approximation errs upwards, and `epsilons` returns a rigorous upper bound:

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> event = PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=4.0)
>>> [round(float(epsilon), 2) for epsilon in epsilons(event, [0, 100, 10_000], delta=1e-5)]
[0.0, 0.08, 0.95]

Method, for each `Direction`; the larger epsilon counts.

1. Each event's loss is discretised from above (`privacy_loss`) on one grid of step h common to the history.
2. The masses p_i are tilted, p_i e^(t l_i - K(t)), with K the logarithm of the moment generating function. The tilt t
   moves the bulk of the composed distribution to the epsilon sought, which makes every rounding error of the transform
   *relative* to delta; without it, delta = 1e-12 would drown in rounding after some ten thousand steps.
3. X = FFT of the tilted masses on N points, that is modulo a period W = N h; E = product of X^n over the events.
4. delta(eps) = sum_i p_i max(1 - e^(eps - l_i), 0) is a correlation, hence one product with A, the transform of
   w_d = (1 - e^(-d h)) e^(-t d h), d >= 1, and one inverse FFT gives delta at every grid point at once.

Formal guarantee. The transforms work modulo W, so step 4 returns sum_m e^(t m W) delta(eps + m W) over all integers m:
delta(eps) plus terms that are never negative. Truncating the period is therefore safe at any W; W only has to be long
enough to be tight, which Chernoff bounds ensure. Infinite losses, the rounding of the transforms, the frequencies that
are dropped and the rounding of the cells are added to delta or to epsilon. delta is convex in e^eps, so
interpolating linearly in e^eps between two upper bounds is an upper bound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedprivacy.accounting import rdp
from fedprivacy.accounting.arrays import ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.histories import check_delta, executed_events, extend_history, untruncated
from fedprivacy.accounting.pairs import ROUNDING, Direction, pair
from fedprivacy.accounting.privacy_loss import (
    TILTS,
    DiscreteLoss,
    deviation,
    discretise,
    fold,
    hockey_stick,
    points_per_deviation,
    support,
    transform_rows,
)
from fedprivacy.values.events import Event, History

_MOST_POINTS = 2**18  # maximum for a grid; beyond, the grid is coarsened, which costs tightness and never soundness
_LEAST_NOISE = 1e-4  # in units of the sensitivity; below it, one execution may cost 10^8 nats and is left to RDP
_FEWEST_POINTS = 64
# Largest index of a grid point of one execution, so that the indices of 2^31 executions fit 64 bits.
_LARGEST_INDEX = 2.0**30
_FINEST_STEP = 2.0**-50  # nats; below it, rounding decides
_MOST_PLANS = 12  # maximum for one history; the result by then is a bound
_MOST_GUESSES = 30  # maximum number of guesses of the remaining delta where samples are cut down
_GUESS_AHEAD = 1.001
_LARGEST_EXPONENT = 700.0
_LARGEST_LOG = math.log(sys.float_info.max)
_CHERNOFF_GAP = 5.0  # over the tilt: usual excess of a Chernoff bound on epsilon over epsilon, at most
_LOG_MAGNIFICATION = 7.0  # nats by which rounding errors may exceed the least possible, to shorten the period
_PROFILED = (1e-9, 1e-6, 1e-4, 1e-2, 0.2, 0.7, 0.99)  # deltas around which a profile is composed
_MOST_PROFILED = 2048  # maximum number of points of a profile around each of them
_COARSER = 2  # octaves of the grid on which the direction is tried that is usually the smaller one
_SURELY_BELOW_RDP = 0.99  # share of Chernoff's bound on a fine grid below which RDP is not looked at
_NEGLIGIBLE = 1e-6  # share of delta that truncation and aliasing may cost
DROPPED = -60.0  # log-magnitude under which a frequency is charged instead of computed


def epsilon(history: History, delta: float) -> float:
    """Return an upper bound on the epsilon of a history at `delta`; 0 for an empty history.

    Args:
        history: number of executions of each event, under one neighbouring relation.
        delta: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; infinite only when neither the PLD nor RDP bounds it.

    Raises:
        ValueError: delta is outside (0, 1), or the history mixes neighbouring relations.
    """
    check_delta(delta)
    return float(_upper_bounds([executed_events(history)], delta)[0])


def epsilons(event: Event, steps: Sequence[int], delta: float, past: History | None = None) -> FloatArray:
    """Return upper bounds on the epsilon of `past` followed by n executions of `event`, for every n of `steps`.

    Args:
        event: the mechanism that is repeated.
        steps: numbers of executions, each >= 0, shape [steps], in any order.
        delta: probability in (0, 1).
        past: earlier executions; empty when omitted.

    Returns:
        Epsilons in nats, shape [steps], never decreasing in the number of executions. A longer list may raise one by up
        to 1e-3 of itself, because all of them share a grid; each is an upper bound in any list.

    Raises:
        ValueError: a step count is negative, delta is outside (0, 1), or the events mix neighbouring relations.
    """
    check_delta(delta)
    distinct, inverse = np.unique(np.asarray(steps, dtype=np.int64), return_inverse=True)
    falling = _upper_bounds([extend_history(past, event, n) for n in distinct[::-1].tolist()], delta)
    return np.asarray(falling[::-1][inverse.reshape(-1)])


def profiles(history: History) -> dict[Direction, tuple[FloatArray, FloatArray]]:
    """Return the whole privacy profile in each direction: epsilons >= 0 and an upper bound on delta at each.

    Formal guarantee: let P be the release with a record and Q the one without, for `Direction.REMOVE`, or the reverse,
    for `Direction.ADD`. At every pair, P(S) <= e^epsilon Q(S) + delta for every event S.

    Args:
        history: number of executions of each event, under one neighbouring relation.

    Returns:
        For each direction, epsilons in nats, maybe infinite, and deltas, both shape [points], in no order.

    Raises:
        ValueError: the history mixes neighbouring relations.
    """
    whole, cut = untruncated(history)
    found = {}
    for direction in Direction:
        parts = [(np.zeros(1), np.zeros(1))] if not whole else []
        for delta in _PROFILED if whole else ():
            epsilon = rdp.epsilon(whole, delta)
            for curve, proved in _compositions(whole, direction, delta, epsilon):
                epsilon = min(epsilon, proved)
                parts.append(curve.points(_MOST_PROFILED))
            parts.append((np.array([epsilon]), np.array([delta])))
        epsilons, deltas = (np.concatenate(part) for part in zip(*parts, strict=True))
        if cut > 0.0:  # see `histories.untruncated`
            with np.errstate(over="ignore"):
                deltas = np.minimum(deltas + (1.0 + np.exp(epsilons)) * cut * (1.0 + ROUNDING), 1.0)
        found[direction] = epsilons, deltas
    return found


def _upper_bounds(histories: Sequence[Mapping[Event, int]], delta: float) -> FloatArray:
    """Bound histories each of which contains the next, shape [histories]."""
    whole = [untruncated(history) for history in histories]
    if all(cut == 0.0 for _, cut in whole):
        return _whole_bounds([history for history, _ in whole], delta)
    bounds = np.array([_truncated_bound(history, cut, delta) for history, cut in whole], dtype=np.float64)
    return np.asarray(np.minimum.accumulate(bounds))


def _truncated_bound(history: Mapping[Event, int], cut: float, delta: float) -> float:
    """Bound a history of which some samples were cut down, with probability `cut` in total.

    See `histories.untruncated`: the remaining delta depends on epsilon, so epsilon is guessed from below, and the first
    one that does not exceed its guess is a bound.
    """
    bound = float(_whole_bounds([history], delta)[0])
    if cut == 0.0:
        return bound
    for _ in range(_MOST_GUESSES):
        guess = bound * _GUESS_AHEAD
        left = delta - (1.0 + math.exp(guess)) * cut if guess < _LARGEST_EXPONENT else 0.0
        if left <= 0.0:
            break
        bound = float(_whole_bounds([history], math.nextafter(left, 0.0))[0])
        if bound <= guess:
            return bound
    return math.inf


def _whole_bounds(histories: Sequence[Mapping[Event, int]], delta: float) -> FloatArray:
    """Bound histories without cut samples, each of which contains the next, shape [histories].

    A bound of a history also bounds its parts, which keeps the bounds in order and tells each placement where to look.
    """
    bounds: list[float] = []
    removing = adding = math.inf
    for history in histories:
        removing = _directed_epsilon(history, Direction.REMOVE, delta, removing)
        adding = _directed_epsilon(history, Direction.ADD, delta, adding, enough=removing)
        bounds.append(max(removing, adding))
    return np.array(bounds, dtype=np.float64)


def _directed_epsilon(
    history: Mapping[Event, int], direction: Direction, delta: float, known: float, enough: float = 0.0
) -> float:
    """Return an upper bound on epsilon in one direction: `known`, which is one, or a smaller one.

    It is the better of two rigorous bounds. RDP wins where the grid had to be coarsened beyond use, or rounding
    decides; else, it is not computed. Nor is a bound of at most `enough`, which a coarse grid proves, improved.
    """
    if not history or known <= enough:
        return known if history else 0.0
    settled = False
    for coarser in (_COARSER, 0) if enough > 0.0 else (0,):
        for curve, epsilon in _compositions(history, direction, delta, known, coarser):
            known, settled = min(known, epsilon), settled or epsilon <= curve.least_by_rdp
        if known <= enough:
            return known
    return known if settled else min(known, rdp.epsilon(history, delta))


def _compositions(
    history: Mapping[Event, int], direction: Direction, delta: float, known: float, coarser: int = 0
) -> Iterator[tuple[DeltaCurve, float]]:
    """Yield deltas by epsilon, each time from a better placement, with the epsilon that they prove at `delta`.

    The grid is the finest that is worth its time, `coarser` by so many octaves.
    """
    if min(np.min(pair(event).noise) for event in history) < _LEAST_NOISE:
        return
    tail = max(_NEGLIGIBLE * delta / sum(history.values()), float(np.finfo(float).tiny))
    # Standard deviations of noise, a multiple of 1/2: growing histories share their discretised losses.
    reach = math.ceil(-2.0 * float(scipy.special.ndtri(tail))) / 2.0
    supports = [support(event, direction, reach) for event in history]
    log2_step, fine = _log2_step(history, supports)
    log2_step, fine = log2_step + coarser, fine and not coarser
    largest = rdp.largest_loss(history)
    for _ in range(_MOST_PLANS):
        losses = [discretise(event, log2_step - coarser, reach).coarsen(coarser) for event in history]
        terms = [(loss.of(direction)[0], count) for loss, count in zip(losses, history.values(), strict=True)]
        placement = GridPlacement.of(terms, 2.0**log2_step, delta, known)
        if placement.points > _MOST_POINTS:
            log2_step, fine = log2_step + math.ceil(math.log2(placement.points / _MOST_POINTS)), False
            continue
        if not placement.represents(terms):
            return
        curve = DeltaCurve.of(terms, placement, min(_SURELY_BELOW_RDP * placement.chernoff, largest) if fine else 0.0)
        epsilon = curve.epsilon(delta)
        yield curve, epsilon
        # Chernoff bounds are far off where a rare execution may cost much: then place the grid anew, around the result.
        if epsilon >= min(placement.lowest, known):
            return
        known = epsilon


def _log2_step(history: Mapping[Event, int], supports: Sequence[tuple[float, float]]) -> tuple[int, bool]:
    """Return the base-2 logarithm of a grid step that is fine relative to the history's root mean square deviation, and
    False if it had to be coarser.

    Splitting a cell adds at most h^2 / 4 to the variance of each execution's loss, whatever the event: what counts is
    the mean variance of an execution. A fixed step would be wasteful for large losses and wrong for small ones.
    """
    counts = np.array(list(history.values()), dtype=np.float64)
    deviations = np.array([deviation(event) for event in history])
    typical = math.sqrt(float(counts @ deviations**2 / counts.sum()))
    longest = max(high - low for low, high in supports)
    largest = max(max(abs(low), abs(high)) for low, high in supports)
    least = max(2.0 * longest / _MOST_POINTS, largest / _LARGEST_INDEX, _FINEST_STEP)
    bounded = any(math.isfinite(pair(event).largest_loss) for event in history)
    fine = typical / float(points_per_deviation(bounded, counts.sum()))
    return math.floor(math.log2(max(fine, least))), fine >= least


Terms = Sequence[tuple[DiscreteLoss, int]]  # discretised losses on one grid, each with its number of executions


@dataclass(frozen=True, slots=True, eq=False)
class GridPlacement:
    """Position, extent and spacing of the grid. It decides tightness only: any placement yields an upper bound."""

    step: float  # grid step h, in nats
    tilt: int  # index of the tilt t in `TILTS`
    points: int  # number of grid points N in a period
    chernoff: float  # epsilon by Chernoff's bound, in nats: that of RDP, up to the orders tried
    lowest: float  # smallest epsilon, in nats, down to which aliases are negligible
    last: int  # index of the last grid point examined, just above the Chernoff bound on epsilon

    @classmethod
    def of(cls, terms: Terms, step: float, delta: float, known: float) -> GridPlacement:
        """Find the shortest period after which aliases are a negligible share of delta, and the tilt that allows it.

        Chernoff: delta(eps) <= e^(K(t) - t eps) t^t / (1 + t)^(1 + t) for every t > 0. The best t keeps rounding
        errors smallest relative to delta, but where one execution in many dominates the loss, its tilted distribution
        is far too wide; so any t that magnifies rounding little may be taken. The epsilon sought is at most `known`.
        """
        tilts = TILTS / step
        log_mgf = np.sum([count * loss.log_mgf for loss, count in terms], axis=0)
        own, next_own = (scipy.special.xlogy(value, value) for value in (tilts, 1.0 + tilts))
        bounds = (log_mgf - math.log(delta) + own - next_own) / tilts
        chernoff = max(float(bounds.min()), 0.0)
        highest = min(chernoff, known)
        lowest = max(highest - _CHERNOFF_GAP / float(tilts[(log_mgf - tilts * highest).argmin()]), 0.0)
        magnified = log_mgf - tilts * lowest
        furthest = sum(count * (loss.first + loss.masses.size) for loss, count in terms) * step - lowest
        periods = _periods(tilts, magnified, math.log(_NEGLIGIBLE * delta), furthest)
        tilt = int(np.argmin(np.where(magnified <= magnified.min() + _LOG_MAGNIFICATION, periods, np.inf)))
        cells = math.ceil(periods[tilt] / step) + _FEWEST_POINTS
        points = int(scipy.fft.next_fast_len(cells, real=True))
        return cls(step, tilt, points, chernoff, lowest, math.ceil(highest / step) + 1)

    def represents(self, terms: Terms) -> bool:
        """Return whether floating-point numbers hold the tilt of every mass; at a delta next to 0 some do not."""
        largest = (float(loss.first + loss.present[-1]) for loss, _ in terms)
        log_mgfs = (float(loss.log_mgf[self.tilt]) for loss, _ in terms)
        return all(
            TILTS[self.tilt] * at - log_mgf <= _LARGEST_LOG for at, log_mgf in zip(largest, log_mgfs, strict=True)
        )


def _periods(tilts: FloatArray, magnified: FloatArray, log_negligible: float, furthest: float) -> FloatArray:
    """Return for each tilt t a period W after which aliases are negligible, in nats, shape [tilts].

    e^(t m W) delta(eps + m W) <= e^(K(u) - u eps - (u - t) m W), for m > 0 with any u > t, for m < 0 with any u < t.
    `magnified` is K(u) - u eps for each u of `tilts`, at the smallest epsilon of interest, `log_negligible` the log of
    the share of delta that aliases may cost; `furthest` from epsilon, in nats, is the largest loss: beyond, delta is 0.
    """
    others, excess = np.append(tilts, 0.0), np.append(magnified, 0.0) - log_negligible  # K(0) = 0
    gaps = others[None, :] - tilts[:, None]
    ratios = excess / np.where(gaps == 0.0, np.nan, np.abs(gaps))
    to_the_right = np.where(gaps > 0.0, ratios, np.inf).min(axis=1)
    to_the_left = np.where(gaps < 0.0, ratios, np.inf).min(axis=1)
    return np.asarray(np.maximum(0.0, np.maximum(np.minimum(to_the_right, furthest), to_the_left)))


@dataclass(frozen=True, slots=True, eq=False)
class DeltaCurve:
    """Upper bounds on delta at the epsilons of a grid, in one direction."""

    grid: IntArray  # indices of consecutive grid points, shape [points]
    step: float  # grid step h, in nats
    slack: float  # nats to add to every epsilon of the grid
    log_delta: FloatArray  # log of delta at each, infinite losses excepted, shape [points]
    infinity: float  # probability of an infinite loss, part of every delta
    least_by_rdp: float  # epsilon, in nats, than which RDP proves no smaller one; 0: it is not known

    @classmethod
    def of(cls, terms: Terms, placement: GridPlacement, least_by_rdp: float = 0.0) -> DeltaCurve:
        """Compose losses on the placed grid."""
        grid = np.arange(max(-1, placement.last - placement.points + 1), placement.last + 1)
        slack = sum(count * loss.slack for loss, count in terms)
        infinity = -math.expm1(sum(count * math.log1p(-loss.infinity) for loss, count in terms))
        return cls(grid, placement.step, slack, _log_delta(terms, placement, grid), infinity, least_by_rdp)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon that the curve proves at `delta`; infinite if it proves none."""
        if self.infinity >= delta:
            return math.inf
        log_excess = self.log_delta - math.log(delta - self.infinity)
        enough = np.flatnonzero(log_excess <= 0.0)
        if enough.size == 0:
            return math.inf
        at = int(enough[0])
        epsilon = float(self.grid[at]) * self.step
        if at > 0:  # linear in e^eps between the last grid point with too large a delta and the first with a small one
            before, after = np.exp(np.minimum(log_excess[at - 1 : at + 1], 700.0))
            epsilon += math.log1p(math.expm1(-self.step) * float((1.0 - after) / (before - after)))
        return max(0.0, epsilon + self.slack)

    def points(self, most: int) -> tuple[FloatArray, FloatArray]:
        """Return at most so many epsilons >= 0 and the delta at each, rounded up, both shape [points]."""
        held = np.flatnonzero(self.grid >= 0)[:: -(-self.grid.size // most)]
        deltas = np.exp(np.minimum(self.log_delta[held], 0.0)) * (1.0 + ROUNDING) + self.infinity
        return np.nextafter(self.grid[held] * self.step + self.slack, np.inf), np.minimum(deltas, 1.0)


def _log_delta(terms: Terms, placement: GridPlacement, grid: IntArray) -> FloatArray:
    """Compute the log of an upper bound on delta, infinite losses excepted, at consecutive points; shape of `grid`."""
    points, tilt = placement.points, TILTS[placement.tilt]
    kept, values, doubt, log_scale = composed_transform(terms, points, placement.tilt, int(grid[0]))
    kernel = hockey_stick(tilt, placement.step, 2.0 * np.pi * np.concatenate([[0], kept]) / points)
    peak, kernel = abs(kernel[0]), kernel[1:]
    product = np.zeros(points // 2 + 1, dtype=np.complex128)
    product[kept] = values * kernel
    curve = scipy.fft.irfft(product, points)[: grid.size]
    error = 2.0 / points * (doubt[kept] @ np.abs(kernel) + peak * (doubt.sum() - doubt[kept].sum()))
    error += ROUNDING * math.log2(points) * math.sqrt(2.0 / points) * float(np.linalg.norm(product))
    rounding = ROUNDING * (100.0 + abs(log_scale) + tilt * np.abs(grid))
    return np.asarray(log_scale - tilt * grid + rounding + np.log(np.maximum(curve, 0.0) + error))


def composed_transform(
    terms: Terms, points: int, tilt: int, start: int
) -> tuple[IntArray, ComplexArray, FloatArray, float]:
    """Multiply the transforms of tilted losses, each to its power, for a period that begins at `start`.

    A power multiplies relative errors by its exponent, so magnitudes and angles are kept instead of complex numbers,
    and a frequency's angle is followed only while its magnitude matters.

    Returns:
        Indices of the frequencies that matter, shape [kept]; the product there, shape [kept]; for every frequency, a
        bound on the distance to the exact product (to zero where it is not kept), shape [N // 2 + 1]; and log of the
        factor that undoes the normalisation of the tilted masses, rounded up.
    """
    first, log_scale = 0, 0.0
    kept = np.arange(points // 2 + 1)
    log_dropped = np.full(kept.size, -np.inf)  # log of a bound where a frequency is not followed any more
    log_magnitude, log_doubt, angle, operations = np.zeros((4, kept.size))
    for loss, count in terms:
        tilts, log_mgf = TILTS[tilt] * (loss.first + loss.present), loss.log_mgf[tilt]
        tilted = loss.masses[loss.present] * np.exp(tilts - log_mgf)
        (transform,), (error,) = transform_rows(fold(tilted, loss.present, points)[None])
        log_dropped += count * math.log(float(tilted.sum()) * (1.0 + ROUNDING * tilted.size))
        transform = transform[kept]
        root = math.exp(max(DROPPED - float(log_magnitude.max()), -_LARGEST_EXPONENT / 3.0) / count)
        followed = transform.real**2 + transform.imag**2 > root**2
        largest = float((log_magnitude + log_doubt).max())
        log_dropped[kept[~followed]] = largest + count * math.log(root * (1.0 + ROUNDING) + error)
        kept, transform = kept[followed], transform[followed]
        magnitude = np.maximum(np.abs(transform), 1e-300)
        log_magnitude = log_magnitude[followed] + count * np.log(magnitude)
        log_doubt = log_doubt[followed] + count * np.log1p(error / magnitude)
        operations = operations[followed] + count * (5.0 + np.abs(np.log(magnitude)))
        angle = angle[followed] + count * np.angle(transform)
        first += count * loss.first
        relative_error = ROUNDING * (1.0 + loss.masses.size / points + np.abs(tilts).max() + abs(log_mgf))
        log_scale += count * (log_mgf + relative_error)
    phase = 2.0 * np.pi * (kept * ((start - first) % points) % points) / points
    values = np.exp(log_magnitude + 1j * (angle + phase))
    # |(x + e)^n - x^n| <= (|x| + |e|)^n - |x|^n
    doubt = np.exp(np.minimum(log_dropped, 700.0))
    doubt[kept] = np.abs(values) * (np.expm1(np.minimum(log_doubt, 700.0)) + ROUNDING * operations)
    return kept, values, doubt, log_scale
