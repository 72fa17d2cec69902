"""The lowest frequencies of tilted privacy losses, for many events on one grid.

The transform of a composed loss is a product of powers, and powers of numbers below 1 vanish: of thousands of
frequencies the lowest few dozen decide delta. The others are bounded by the largest of them and charged.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedprivacy.accounting.arrays import ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.pairs import ROUNDING
from fedprivacy.accounting.plans import TILTS
from fedprivacy.accounting.privacy_loss import DiscreteLoss, folded, hockey_stick, transformed

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
    tilt: int  # index into `plans.TILTS`
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
        rows, first, log_scale = _tilted(losses, grid)
        transforms, errors = transformed(rows)
        lowest = np.maximum(np.abs(transforms[:, : LEVELS[-1] + 1]), 1e-300)
        with np.errstate(divide="ignore"):
            log_beyond = np.log(_largest_beyond(transforms, errors))
        log_doubt = np.log1p(errors[:, None] / _smallest_kept(lowest))
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
    def stacked(cls, spectra: Sequence[Spectrum], grid: LossGrid, level: int) -> Spectrum:
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


def _smallest_kept(magnitudes: FloatArray) -> FloatArray:
    """Return the smallest magnitude up to each of `LEVELS`, or of all, shape [rows, levels]."""
    borders = [0, *(np.minimum(LEVELS, magnitudes.shape[1] - 1) + 1).tolist()]
    between = [magnitudes[:, start:end].min(axis=1, initial=np.inf) for start, end in itertools.pairwise(borders)]
    return np.asarray(np.minimum.accumulate(between, axis=0).T)


def levels(log_beyond: FloatArray, *, rough: bool = False) -> IntArray:
    """Return the first level beyond which every magnitude has vanished, or their number: [..., levels] to [...]."""
    return np.asarray((log_beyond > (_ROUGHLY_VANISHED if rough else VANISHED)).sum(axis=-1))


def _tilted(losses: Sequence[DiscreteLoss], grid: LossGrid) -> tuple[FloatArray, IntArray, FloatArray]:
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
    rows = folded(weights, places, grid.points * len(losses)).reshape(len(losses), grid.points)
    return rows, first + means, log_scale + rounding
