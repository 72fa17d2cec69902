"""Grids for the privacy losses of many histories at once: their placement, and the spectra of losses on them.

A placement is a grid's position, extent and spacing. It decides speed and tightness, never soundness: for any grid,
tilt and period, what a spectrum leaves out is charged.

The transform of a composed loss is a product of powers, and powers of numbers below 1 vanish: of thousands of
frequencies the lowest few dozen decide delta. The others are bounded by the largest of them and charged.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from fedprivacy.accounting import rdp
from fedprivacy.accounting.arrays import Aligned, ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.pairs import ROUNDING, stack_pairs
from fedprivacy.accounting.privacy_loss import DiscreteLoss, fold, hockey_stick, points_per_deviation, transform_rows
from fedprivacy.values.events import Event, TruncatedPoissonSampledGaussian

TILTS: FloatArray = 2.0 ** (np.arange(-12, 21) / 2.0)  # exponential tilts t, per nat: half an octave is near enough
TILTS.setflags(write=False)
MOST_POINTS = 2**17  # maximum for a period; histories that need more are left to `pld`, one by one
_RANGED_AT_ONCE = 64  # events
_WIDEST = 1e300
_NEGLIGIBLE = 1e-6  # share of delta that aliases may cost
_FEWEST_POINTS = 64
_MAGNIFICATION = 7.0  # nats by which rounding errors may exceed the least possible, to shorten the period
_LOWER_TILTS = 8  # number of lower tilts tried for a shorter period
_DOUBT = 4.0  # over the tilt: excess of an estimate of epsilon over epsilon, at most
_HALF_OCTAVE = math.log(2.0) / 2.0
_REACHES = (10.0, 40.0)  # standard deviations of noise within which an event's largest loss is computed
_FINEST_STEP = 2.0**-50  # nats; below it, rounding decides
_LEAST_EXCESS = 1e-3  # nats
_INVERSE_GAPS: FloatArray = np.full((TILTS.size, TILTS.size), 1e100)  # of t and u, 1 / (u - t); never for u <= t
np.divide(1.0, TILTS - TILTS[:, None], out=_INVERSE_GAPS, where=TILTS[:, None] < TILTS)
_KERNEL_CURVATURE: FloatArray = 1.0 / TILTS**2 + 1.0 / (1.0 + TILTS) ** 2


@dataclass(frozen=True, slots=True)
class Placements(Aligned):
    """One placement for each history; every array has shape [histories]."""

    log2_step: IntArray  # base-2 logarithm of the grid step, in nats
    reach: IntArray  # standard deviations of noise that the grid covers
    tilt: IntArray  # index into `TILTS`
    points: IntArray  # number of points of a period, N; 0 where a history is not suited
    estimate: FloatArray  # estimate of epsilon, in nats: start of the search
    lowest: FloatArray  # epsilon, in nats, down to which aliases are negligible
    known: FloatArray  # upper bounds on epsilon, in nats, before anything is computed


@dataclass(frozen=True, slots=True)
class Moments(Aligned):
    """Moments of events, or of composed histories, as far as planning needs them; a row for each."""

    # K(t), an upper bound on the logarithm of the moment generating function of the loss in either direction, at
    # `TILTS`; infinite where it is unknown; shape [rows, tilts].
    log_moments: FloatArray
    squares: FloatArray  # squared deviation of an execution's loss, in nats^2, summed over the executions; shape [rows]
    highest: FloatArray  # the largest loss within each of `_REACHES`, in nats, shape [rows, 2]
    largest: FloatArray  # the largest loss at all, in nats, often infinite; shape [rows]
    bounded: FloatArray  # number of executions whose loss has a largest value, an atom that a grid blurs; shape [rows]
    steps: FloatArray  # number of executions, shape [rows]
    widest: FloatArray  # largest `highest` of a single execution; shape [rows, 2]

    @classmethod
    def of(cls, events: Sequence[Event]) -> Moments:
        """Compute the moments of one execution of each event."""
        deviations, near, far, largest = _loss_ranges(events)
        highest = np.stack([near, far], axis=1)
        log_moments = TILTS * rdp.divergences(events, 1.0 + TILTS)
        bounded = np.isfinite(largest).astype(np.float64)
        return cls(log_moments, deviations**2, highest, largest, bounded, np.ones(len(events)), highest)

    def compose(self, counts: scipy.sparse.csr_array) -> Moments:
        """Compose the moments of histories, given counts of these events (each at least once), shape [histories,
        events].
        """
        return Moments(
            log_moments=counts @ self.log_moments,
            squares=counts @ self.squares,
            highest=counts @ self.highest,
            largest=counts @ self.largest,
            bounded=counts @ self.bounded,
            steps=counts @ self.steps,
            widest=np.maximum.reduceat(self.widest[counts.indices], counts.indptr[:-1], axis=0),
        )

    def epsilons(self, deltas: FloatArray) -> FloatArray:
        """Return upper bounds by RDP, in nats, shape [rows]; the largest loss is the divergence of infinite order."""
        by_order = rdp.to_epsilon(self.log_moments / TILTS, deltas[:, None], 1.0 + TILTS)
        return np.asarray(np.minimum(by_order.min(axis=1), self.largest))


def _loss_ranges(events: Sequence[Event]) -> FloatArray:
    """Return the deviation, the largest losses within `_REACHES` and the largest of all, in nats, of each event; shape
    [4, events]; infinite if unplannable.
    """
    ranges = np.full((4, len(events)), math.inf)
    placed = [place for place, event in enumerate(events) if not isinstance(event, TruncatedPoissonSampledGaussian)]
    for start in range(0, len(placed), _RANGED_AT_ONCE):
        part = placed[start : start + _RANGED_AT_ONCE]
        for some, pairs in stack_pairs([events[place] for place in part]):
            places = np.array(part)[some]
            ranges[0, places] = pairs.deviations().min(axis=0)
            for row, reach in enumerate(_REACHES, start=1):
                low, high = pairs.support(reach)
                ranges[row, places] = np.maximum(high, -low)
            ranges[3, places] = pairs.largest_loss
    return ranges


def _at(reach: IntArray, highest: FloatArray) -> FloatArray:
    """Bound the largest loss within a reach by those within `_REACHES` (it is convex in the reach); shape [rows]."""
    near, far = _REACHES
    share = np.maximum(reach - near, 0.0) / (far - near)
    return np.asarray(highest[:, 0] + share * (highest[:, 1] - highest[:, 0]))


def placements(moments: Moments, deltas: FloatArray, known: FloatArray) -> Placements:
    """Plan histories by their moment generating functions, with the saddle-point method.

    Args:
        moments: moments of the histories.
        deltas: delta of each history, shape [histories].
        known: upper bounds on epsilon, in nats, shape [histories].
    """
    deviations = np.sqrt(np.minimum(moments.squares / moments.steps, _WIDEST))
    step = np.maximum(deviations / points_per_deviation(moments.bounded > 0.0, moments.steps), _FINEST_STEP)
    log2_step = np.nan_to_num(np.floor(np.log2(step))).astype(np.int64)
    tails = np.maximum(_NEGLIGIBLE * deltas / moments.steps, float(np.finfo(float).tiny))
    # Standard deviations of noise, as even numbers, beyond which mass costs a negligible share of delta.
    reach = np.asarray(2.0 * np.ceil(-0.5 * scipy.special.ndtri(tails)), dtype=np.int64)
    # One event, on a grid that `pld` does not coarsen: calibration compares the two.
    alone = moments.highest[:, 0] >= moments.steps * moments.widest[:, 0]
    known = np.minimum(known, moments.epsilons(deltas))
    estimate = np.minimum(_saddle_point(moments.log_moments, np.log(deltas)), known)
    log_negligible = np.log(_NEGLIGIBLE * deltas)
    with np.errstate(invalid="ignore"):
        best = np.nan_to_num(moments.log_moments - TILTS * estimate[:, None], nan=np.inf).argmin(axis=1)
    lowest = np.maximum(estimate - _DOUBT / TILTS[best], 0.0)
    with np.errstate(invalid="ignore"):
        furthest = _at(reach, moments.highest) - lowest
        suited = _at(reach, moments.widest) * 2.0**-log2_step < np.where(alone, MOST_POINTS / 2, MOST_POINTS)
    tilt, period = _shortest_periods(moments.log_moments, furthest, best, lowest, log_negligible)
    points = _rounded_up(period * 2.0**-log2_step + _FEWEST_POINTS)
    suited &= (points < MOST_POINTS) & np.isfinite(estimate) & (moments.squares > 0.0)
    return Placements(log2_step, reach, tilt, np.where(suited, points, 0), estimate, lowest, known)


def _saddle_point(log_moments: FloatArray, log_deltas: FloatArray) -> FloatArray:
    """Estimate epsilon, in nats, shape [histories]."""
    with np.errstate(invalid="ignore"):
        log_delta = log_moments - np.log(TILTS * (1.0 + TILTS)) - 0.5 * np.log(2.0 * np.pi * _curvature(log_moments))
        candidates = (log_delta - log_deltas[:, None]) / TILTS
    return np.asarray(np.maximum(np.nan_to_num(candidates, nan=np.inf, posinf=np.inf).min(axis=1), 0.0))


def _shortest_periods(
    log_moments: FloatArray, furthest: FloatArray, best: IntArray, lowest: FloatArray, log_negligible: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Return the tilts, near the best ones, whose periods are shortest; and the periods, in nats.

    The best tilt keeps rounding errors smallest, but where one execution in many dominates the loss, its tilted
    distribution is far too wide; so any tilt that magnifies rounding little may be taken.
    """
    with np.errstate(invalid="ignore"):
        magnified = np.nan_to_num(log_moments - TILTS * lowest[:, None], nan=np.inf, posinf=np.inf)
    right, left = _periods(magnified, furthest, best, log_negligible)
    tilt, period = best.copy(), np.maximum(right, left)
    rows = np.flatnonzero(right > left)  # a lower tilt lengthens the left one
    least = magnified[rows, best[rows]] + _MAGNIFICATION
    for lower in range(1, _LOWER_TILTS):
        other = np.maximum(best[rows] - lower, 0)
        allowed = magnified[rows, other] <= least
        rows, other, least = rows[allowed], other[allowed], least[allowed]
        if not rows.size:
            break
        shorter = np.maximum(*_periods(magnified[rows], furthest[rows], other, log_negligible[rows]))
        tilt[rows] = np.where(shorter < period[rows], other, tilt[rows])
        period[rows] = np.minimum(shorter, period[rows])
    return tilt, period


def _curvature(log_moments: FloatArray) -> FloatArray:
    """Compute the second derivative by t of K(t) - log(t (1 + t)), from differences over the octaves."""
    with np.errstate(invalid="ignore"):
        slope, bend = np.empty_like(log_moments), np.empty_like(log_moments)
        slope[:, 1:-1] = (log_moments[:, 2:] - log_moments[:, :-2]) / (2.0 * _HALF_OCTAVE)
        bend[:, 1:-1] = (log_moments[:, 2:] - 2.0 * log_moments[:, 1:-1] + log_moments[:, :-2]) / _HALF_OCTAVE**2
        slope[:, [0, -1]], bend[:, [0, -1]] = slope[:, [1, -2]], bend[:, [1, -2]]
        return np.asarray(np.maximum(bend - slope, 0.0) / TILTS**2 + _KERNEL_CURVATURE)


def _periods(
    magnified: FloatArray, furthest: FloatArray, tilt: IntArray, log_negligible: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return periods W after which aliases from the right, and from the left, are negligible; in nats, shape
    [histories].

    e^(t m W) delta(eps + m W) <= e^(K(u) - u eps - (u - t) m W), for m > 0 with any u > t, for m < 0 with any u < t.
    As in `pld`, whose `_periods` has one history and all t; t is that of index `tilt`, [histories], of `TILTS`.
    """
    excess = np.maximum(magnified - log_negligible[:, None], _LEAST_EXCESS)
    with np.errstate(over="ignore"):
        right = np.minimum((excess * _INVERSE_GAPS[tilt]).min(axis=1), furthest)
        left = np.minimum((excess * _INVERSE_GAPS.T[tilt]).min(axis=1), -log_negligible / TILTS[tilt])
    return right, left


def _rounded_up(numbers: FloatArray) -> IntArray:
    """Round up to 2^k or 3 * 2^k: few different sizes, all of them quick to transform."""
    power = 2.0 ** np.ceil(np.log2(np.fmin(numbers, MOST_POINTS)))
    return np.where(0.75 * power >= numbers, 0.75 * power, power).astype(np.int64)


_TRANSFORMED_AT_ONCE = 2**16  # grid points
_LARGEST_LOG = 750.0  # largest absolute log of a floating-point number
LEVELS: IntArray = 2 ** np.arange(3, 15) - 1  # numbers of lowest frequencies above zero that may be computed
LEVELS.setflags(write=False)
_ROUGHLY_VANISHED = -7.0  # the same where a bound is compared that is usually far from deciding
VANISHED = -19.0  # log of the magnitude below which a frequency, and those above it, are charged instead of computed


class LossGrid(NamedTuple):
    """The grid on which spectra are computed."""

    log2_step: int  # base-2 logarithm of the grid step h, in nats
    reach: int  # standard deviations of noise that the grid covers
    tilt: int  # index into `TILTS`
    points: int  # number of points of a period, N
    coarser: int = 0  # octaves by which the step was increased, merging cells

    @property
    def step(self) -> float:
        """LossGrid step h, in nats."""
        return 2.0**self.log2_step

    @property
    def coarse(self) -> LossGrid:
        """The grid of the same period and tilt with a quarter of the points."""
        return self._replace(log2_step=self.log2_step + 2, points=self.points // 4, coarser=2)

    @property
    def tilt_per_step(self) -> float:
        """Tilt per grid step, t h, without unit."""
        return float(TILTS[self.tilt]) * self.step


@functools.lru_cache(maxsize=256)
def kernel(grid: LossGrid) -> tuple[ComplexArray, FloatArray]:
    """Compute the hockey stick's transform on a grid, over N, and twice that where a frequency stands for its negative.

    Returns:
        The lowest frequencies, shape [largest of LEVELS + 1, or all]; and the sum of the magnitudes beyond each of
        `LEVELS`, shape [levels].
    """
    half = grid.points // 2
    frequencies = 2.0 * np.pi / grid.points * np.arange(half + 1, dtype=np.float64)
    transform = hockey_stick(grid.tilt_per_step, grid.step, frequencies)
    transform *= 2.0 / grid.points
    transform[[0, -1]] /= 2.0
    falling = np.append(np.abs(transform)[::-1].cumsum()[::-1], 0.0)
    return transform[: LEVELS[-1] + 1].copy(), falling[np.minimum(LEVELS, half) + 1]


class Spectrum(NamedTuple):
    """Lowest frequencies of the tilted loss of an event, or of several events, a row for each.

    The transform of frequency k is e^(log_magnitude + i angle), for masses that begin at grid point `first`.
    """

    log_magnitude: FloatArray  # shape [kept + 1], frequency 0 first
    angle: FloatArray  # in radians, shape [kept + 1]
    log_beyond: FloatArray  # log of the largest magnitude beyond each of `LEVELS`, rounding included, shape [levels]
    log_doubt: FloatArray  # log of 1 + the largest relative error up to each of `LEVELS`, shape [levels]
    first: int | IntArray  # index of a grid point
    log_scale: float | FloatArray  # K(t), log of the factor that undoes the normalisation, rounded up
    slack: float | FloatArray  # nats to add to epsilon for each execution
    log_finite: float | FloatArray  # log of the probability that the loss is finite
    level: int | IntArray  # index into `LEVELS` of the number of frequencies

    @classmethod
    def of(cls, losses: Sequence[DiscreteLoss], grid: LossGrid, steps: FloatArray) -> list[Spectrum]:
        """Compute a spectrum of each loss, with as many frequencies as that many `steps`, or more, need."""
        size = max(1, _TRANSFORMED_AT_ONCE // grid.points)
        starts = range(0, len(losses), size)
        return [
            one for start in starts for one in cls._of(losses[start : start + size], grid, steps[start : start + size])
        ]

    @classmethod
    def _of(cls, losses: Sequence[DiscreteLoss], grid: LossGrid, steps: FloatArray) -> list[Spectrum]:
        rows, first, log_scale = _tilt_masses(losses, grid)
        transforms, errors = transform_rows(rows)
        lowest = np.maximum(np.abs(transforms[:, : LEVELS[-1] + 1]), 1e-300)
        with np.errstate(divide="ignore"):
            log_beyond = np.log(_largest_beyond(transforms, errors))
        borders = [0, *(np.minimum(LEVELS, lowest.shape[1] - 1) + 1).tolist()]
        between = [lowest[:, start:end].min(axis=1, initial=np.inf) for start, end in itertools.pairwise(borders)]
        smallest = np.asarray(np.minimum.accumulate(between, axis=0).T)  # up to each of `LEVELS`, or of all
        log_doubt = np.log1p(errors[:, None] / smallest)
        level = np.minimum(levels(steps[:, None] * log_beyond), LEVELS.size - 1)
        spectra: dict[int, Spectrum] = {}
        for one in np.unique(level).tolist():
            some = np.flatnonzero(level == one)
            kept = slice(0, LEVELS[one] + 1)
            log_magnitude, angle = np.log(lowest[some, kept]), np.angle(transforms[some, kept])
            for place, row in enumerate(some.tolist()):
                spectra[row] = cls(
                    log_magnitude=log_magnitude[place],
                    angle=angle[place],
                    log_beyond=log_beyond[row],
                    log_doubt=log_doubt[row],
                    first=int(first[row]),
                    log_scale=float(log_scale[row]),
                    slack=losses[row].slack,
                    log_finite=math.log1p(-losses[row].infinity),
                    level=one,
                )
        return [spectra[row] for row in range(len(losses))]

    @classmethod
    def stack(cls, spectra: Sequence[Spectrum], grid: LossGrid, level: int) -> Spectrum:
        """Stack several spectra, a row for each, up to a level; zero where one has fewer frequencies.

        How wide they are depends on grid and level alone: rounding, too, must not tell what was computed before.
        """
        width = min(int(LEVELS[level]), grid.points // 2) + 1
        log_magnitude, angle = np.full((len(spectra), width), -np.inf), np.zeros((len(spectra), width))
        for row, one in enumerate(spectra):
            size = min(one.angle.size, width)
            log_magnitude[row, :size], angle[row, :size] = one.log_magnitude[:size], one.angle[:size]
        return cls(log_magnitude, angle, *(np.array(column) for column in list(zip(*spectra, strict=True))[2:]))


def _largest_beyond(transforms: ComplexArray, errors: FloatArray) -> FloatArray:
    """Bound the largest magnitude beyond each of `LEVELS`, shape [rows, levels]; 0 where there is none."""
    squares = transforms.real**2
    squares += transforms.imag**2  # their roots are rounded, too: far less than by `errors`
    borders = [level + 1 for level in LEVELS.tolist() if level < squares.shape[1] - 1]
    between = [squares[:, start:end].max(axis=1) for start, end in itertools.pairwise([*borders, squares.shape[1]])]
    largest = np.zeros((errors.size, LEVELS.size))
    beyond = np.sqrt(np.maximum.accumulate(between[::-1], axis=0)[::-1].T)
    largest[:, : len(borders)] = beyond + errors[:, None]
    return largest


def levels(log_beyond: FloatArray, *, rough: bool = False) -> IntArray:
    """Return the first level beyond which every magnitude has vanished, or their number: [..., levels] to [...]."""
    return np.asarray((log_beyond > (_ROUGHLY_VANISHED if rough else VANISHED)).sum(axis=-1))


def _tilt_masses(losses: Sequence[DiscreteLoss], grid: LossGrid) -> tuple[FloatArray, IntArray, FloatArray]:
    """Compute tilted, normalised masses modulo the period, each rotated so that their mean is near the row's start.

    Rotation keeps angles small, and with them their powers' rounding. Returns the rows, shape [losses, points]; the
    grid point of each row's start, shape [losses]; and K(t), log of the factor that undoes the normalisation, rounded
    up, shape [losses].
    """
    first = np.array([loss.first for loss in losses])
    sizes = np.array([loss.present.size for loss in losses])
    begins = sizes.cumsum() - sizes
    present = np.concatenate([loss.present for loss in losses])
    exponents = grid.tilt_per_step * (first.repeat(sizes) + present)
    largest = np.maximum(np.abs(exponents[begins]), np.abs(exponents[begins + sizes - 1]))
    exponents += np.concatenate([loss.log_masses for loss in losses])
    highest = np.maximum.reduceat(exponents, begins)
    exponents -= highest.repeat(sizes)
    weights = np.exp(exponents, out=exponents)
    totals = np.add.reduceat(weights, begins)
    weights /= totals.repeat(sizes)
    means = np.rint(np.add.reduceat(weights * present, begins)).astype(np.int64)
    log_scale = highest + np.log(totals)
    turns = np.array([loss.masses.size for loss in losses]) / grid.points
    rounding = ROUNDING * (_LARGEST_LOG + turns + largest + np.abs(log_scale))
    places = (present - means.repeat(sizes)) % grid.points
    places += grid.points * np.arange(len(losses)).repeat(sizes)
    rows = fold(weights, places, grid.points * len(losses)).reshape(len(losses), grid.points)
    return rows, first + means, log_scale + rounding
