"""The lowest frequencies of tilted privacy losses, for many events on one grid.

The transform of a composed loss is a product of powers, and powers of numbers below 1 vanish: of thousands of
frequencies the lowest few dozen decide delta. The others are bounded by the largest of them and charged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedprivacy.accounting.arrays import ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.pairs import ROUNDING, Direction
from fedprivacy.accounting.plans import TILTS
from fedprivacy.accounting.privacy_loss import DiscreteLoss, discretise, folded, hockey_stick, transformed
from fedprivacy.values.events import Event

_LARGEST_LOG = 750.0  # largest absolute log of a floating-point number
LEVELS: IntArray = 2 ** np.arange(3, 11) - 1  # numbers of lowest frequencies above zero that may be computed
LEVELS.setflags(write=False)
VANISHED = -19.0  # log of the magnitude below which a frequency, and those above it, are charged instead of computed


class LossGrid(NamedTuple):
    """The grid on which spectra are computed."""

    log2_step: int  # base-2 logarithm of the grid step h, in nats
    reach: int  # standard deviations of noise that the grid covers
    tilt: int  # index into `plans.TILTS`
    points: int  # number of points of a period, N

    @property
    def step(self) -> float:
        """LossGrid step h, in nats."""
        return 2.0**self.log2_step

    @property
    def tilt_per_step(self) -> float:
        """Tilt per grid step, t h, without unit."""
        return float(TILTS[self.tilt]) * self.step


@functools.lru_cache(maxsize=1024)
def kernel(grid: LossGrid) -> tuple[ComplexArray, FloatArray]:
    """Compute the hockey stick's transform on a grid, over N, and twice that where a frequency stands for its negative.

    Returns:
        The lowest frequencies, shape [largest of LEVELS + 1], zero beyond N / 2; and the sum of the magnitudes beyond
        each of `LEVELS`, shape [levels].
    """
    half = grid.points // 2
    frequencies = 2.0 * np.pi / grid.points * np.arange(half + 1, dtype=np.float64)
    transform = hockey_stick(grid.tilt_per_step, grid.step, frequencies)
    transform *= 2.0 / grid.points
    transform[[0, -1]] /= 2.0
    falling = np.append(np.abs(transform)[::-1].cumsum()[::-1], 0.0)
    lowest = np.zeros(LEVELS[-1] + 1, dtype=np.complex128)
    lowest[: half + 1] = transform[: LEVELS[-1] + 1]
    return lowest, falling[np.minimum(LEVELS, half) + 1]


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
    def of(cls, event: Event, direction: Direction, grid: LossGrid, steps: float) -> Spectrum:
        """Compute as many frequencies as `steps` executions, or more, need."""
        loss = discretise(event, grid.log2_step, grid.reach)[direction]
        masses, first, log_scale = _tilted(loss, grid)
        transform, error = transformed(masses)
        magnitude = np.maximum(np.abs(transform), 1e-300)
        with np.errstate(divide="ignore"):
            log_beyond = np.log(_largest_beyond(magnitude, error))
        level = min(int(levels(steps * log_beyond)), LEVELS.size - 1)
        kept = min(LEVELS[level], magnitude.size - 1)
        return cls(
            log_magnitude=np.log(magnitude[: kept + 1]),
            angle=np.angle(transform[: kept + 1]),
            log_beyond=log_beyond,
            log_doubt=np.log1p(error / _smallest_kept(magnitude)),
            first=first,
            log_scale=log_scale,
            slack=loss.slack,
            log_finite=math.log1p(-loss.infinity),
            level=level,
        )

    @classmethod
    def stacked(cls, spectra: Sequence[Spectrum], level: int) -> Spectrum:
        """Stack several spectra, a row for each, up to a level; zero where one has fewer frequencies."""
        width = int(LEVELS[level]) + 1
        log_magnitude, angle = np.full((len(spectra), width), -np.inf), np.zeros((len(spectra), width))
        for row, one in enumerate(spectra):
            size = min(one.angle.size, width)
            log_magnitude[row, :size], angle[row, :size] = one.log_magnitude[:size], one.angle[:size]
        return cls(log_magnitude, angle, *(np.array(column) for column in list(zip(*spectra, strict=True))[2:]))


def _largest_beyond(magnitude: FloatArray, error: float) -> FloatArray:
    """Bound the largest magnitude beyond each of `LEVELS`; 0 where there is none."""
    inside = LEVELS[magnitude.size - 1 > LEVELS]
    largest = np.zeros(LEVELS.size)
    between = np.maximum.reduceat(magnitude, inside + 1)
    largest[: inside.size] = np.maximum.accumulate(between[::-1])[::-1] + error
    return largest


def _smallest_kept(magnitude: FloatArray) -> FloatArray:
    """Return the smallest magnitude up to each of `LEVELS`, or of all."""
    inside = LEVELS[magnitude.size - 1 > LEVELS]
    between = np.minimum.accumulate(np.minimum.reduceat(magnitude, np.append(0, inside + 1)))
    return np.asarray(np.append(between, np.full(LEVELS.size, between[-1]))[: LEVELS.size])


def levels(log_beyond: FloatArray) -> IntArray:
    """Return the first level beyond which every magnitude has vanished, or their number: [..., levels] to [...]."""
    return np.asarray((log_beyond > VANISHED).sum(axis=-1))


def _tilted(loss: DiscreteLoss, grid: LossGrid) -> tuple[FloatArray, int, float]:
    """Tilt and normalise the masses modulo the period, and rotate them so that their mean is near the first point.

    Rotation keeps angles small, and with them their powers' rounding. Also returns the first mass's grid point, and
    K(t), log of the factor that undoes the normalisation, rounded up.
    """
    exponents = grid.tilt_per_step * (loss.first + np.arange(loss.masses.size, dtype=np.float64))
    largest = float(np.abs(exponents).max())
    with np.errstate(divide="ignore"):
        exponents += np.log(loss.masses)
    highest = float(exponents.max())
    weights = np.exp(exponents - highest)
    total = float(weights.sum())
    weights /= total
    mean = round(float(weights @ np.arange(weights.size)))
    log_scale = highest + math.log(total)
    rounding = ROUNDING * (_LARGEST_LOG + weights.size / grid.points + largest + abs(log_scale))
    return np.roll(folded(weights, grid.points), -mean), loss.first + mean, log_scale + rounding
