"""Delta as a function of epsilon, for many histories on one grid, and the epsilon at which it is small enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedprivacy.accounting.arrays import ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.pairs import ROUNDING
from fedprivacy.accounting.spectra import LEVELS, Grid, Spectrum, kernel

_NEGLIGIBLE = 1e-5  # share of delta that may be charged before a history is left to `pld`
_LARGEST_LOG = 745.0  # of a magnitude that is not zero
_GUESSES = 12
_NEAR = 0.25  # grid points from the target that are near enough
_MOST_STEPS = 40  # from the guess to the grid point


@dataclass(frozen=True, slots=True)
class Curves:
    """log delta(eps) of histories, up to what is charged; every array has a column or an entry for each history."""

    grid: Grid
    origin: IntArray  # index of the grid point from which points are counted
    series: ComplexArray  # of e^(i w k), lowest frequency k first, shape [blocks, frequencies in a block, histories]
    turns: FloatArray  # of the origin against the first masses, in grid points modulo the period, shape [histories]
    charge: FloatArray  # what rounding and dropped frequencies may add to the series, shape [histories]
    log_scale: FloatArray  # log of what undoes the tilt's normalisation, shape [histories]
    log_target: FloatArray  # log of the delta that finite losses may cost, shape [histories]
    slack: FloatArray  # nats to add to epsilon, shape [histories]

    @classmethod
    def of(
        cls,
        grid: Grid,
        spectrum: Spectrum,
        level: IntArray,
        counts: csr_array,
        *,
        deltas: FloatArray,
        estimates: FloatArray,
    ) -> Curves:
        """Multiply the transforms of each history's events.

        Args:
            grid: the grid of the spectrum.
            spectrum: of the events, a row for each.
            level: index into `LEVELS`: how many frequencies of each history are computed, shape [histories].
            counts: how often each history executed each event, shape [histories, events].
            deltas: shape [histories].
            estimates: of each history's epsilon, in nats, shape [histories].
        """
        rows, size = np.arange(level.size), spectrum.angle.shape[1]
        kept = np.arange(size) <= LEVELS[level][:, None]
        lowest, beyond = kernel(grid)
        weight = lowest[:size]
        magnitude, angle = np.exp(counts @ spectrum.log_magnitude) * kept, counts @ spectrum.angle
        series = (magnitude * (np.cos(angle) + 1j * np.sin(angle)) * weight).T
        relative = np.expm1(np.minimum((counts @ spectrum.log_doubt)[rows, level], 700.0))
        relative += ROUNDING * (_LARGEST_LOG + 5.0 * counts.sum(axis=1) + 4.0 * size)
        dropped = np.exp((counts @ spectrum.log_beyond)[rows, level]) * beyond[level]
        origin = np.rint(estimates / grid.step).astype(np.int64)
        turns = (origin - counts.astype(np.int64) @ spectrum.first) % grid.points
        infinity = -np.expm1(counts @ spectrum.log_finite)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_target = np.log(np.maximum(deltas - infinity, 0.0))
        return cls(
            grid=grid,
            origin=origin,
            series=_in_blocks(series),
            turns=turns.astype(np.float64),
            charge=relative * (magnitude @ np.abs(weight)) + dropped,
            log_scale=counts @ spectrum.log_scale,
            log_target=log_target,
            slack=counts @ spectrum.slack,
        )

    def excess(self, points: FloatArray) -> FloatArray:
        """log of delta over the target, at each history's grid point counted from its origin; shape [histories]."""
        values = np.maximum(self._values(points), 0.0) + self.charge
        tilts = self.grid.tilt_per_step * (self.origin + points)
        rounding = ROUNDING * (100.0 + np.abs(self.log_scale) + np.abs(tilts))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(values) + self.log_scale - tilts + rounding - self.log_target)

    def _values(self, points: FloatArray) -> FloatArray:
        """The series' real part: Horner's scheme over blocks of powers."""
        angle = 2.0 * np.pi / self.grid.points * ((self.turns + points) % self.grid.points)
        turn = np.cos(angle) + 1j * np.sin(angle)
        powers = np.ones(self.series.shape[1:], dtype=np.complex128)
        for power in range(1, len(powers)):
            np.multiply(powers[power - 1], turn, out=powers[power])
        blocks = np.einsum("bkh,kh->bh", self.series, powers)
        turn *= powers[-1]
        total = blocks[-1]
        for block in blocks[-2::-1]:
            total *= turn
            total += block
        return np.asarray(total.real)

    def epsilons(self) -> FloatArray:
        """Upper bounds on epsilon, in nats, shape [histories]; NaN where charges are too large, or none is found."""
        points = self._guess()
        lower = np.maximum(np.floor(points), -1.0 - self.origin.astype(np.float64))
        before, after = self.excess(lower), self.excess(lower + 1.0)
        for _ in range(_MOST_STEPS):
            too_low, too_high = after > 0.0, (before <= 0.0) & (lower + self.origin >= 0.0)
            if not (too_low | too_high).any():
                break
            lower += too_low.astype(np.float64) - too_high.astype(np.float64)
            before, after = self.excess(lower), self.excess(lower + 1.0)
        found = (after <= 0.0) & ((before > 0.0) | (lower + self.origin < 0.0))
        return np.where(found & self._sharp(lower + 1.0), self._between(lower, before, after), np.nan)

    def epsilons_above(self, floors: FloatArray) -> FloatArray:
        """The larger of `floors` and `epsilons`, in nats, shape [histories]: cheap where the floors are larger."""
        points: FloatArray = np.floor((floors - self.slack) / self.grid.step) - self.origin
        larger = np.flatnonzero(self.excess(points) > 0.0)
        results = floors.copy()
        if larger.size:
            results[larger] = np.maximum(floors[larger], self._picked(larger).epsilons())
        return results

    def _guess(self) -> FloatArray:
        """Where the target is nearly met, in grid points from the origin, by secants; shape [histories]."""
        points = np.zeros(self.origin.size)
        slope = np.full(points.shape, -self.grid.tilt_per_step)
        curves, left = self, np.arange(points.size)
        excess = curves.excess(points)
        for _ in range(_GUESSES):
            move = np.maximum(np.nan_to_num(-excess / slope), -curves.origin - points[left])
            far = np.abs(move) > _NEAR
            points[left] += move
            if not far.any():
                break
            if far.sum() < far.size // 2:
                curves, left, move, slope, excess = curves._picked(far), left[far], move[far], slope[far], excess[far]
            known, excess = excess, curves.excess(points[left])
            with np.errstate(divide="ignore", invalid="ignore"):
                secant = (excess - known) / move
            usual = (secant < -0.1 * self.grid.tilt_per_step) & (secant > -10.0 * self.grid.tilt_per_step)
            slope = np.where(usual & (np.abs(move) > _NEAR), secant, slope)
        return points

    def _sharp(self, points: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(self.charge <= _NEGLIGIBLE * self._values(points))

    def _between(self, lower: FloatArray, before: FloatArray, after: FloatArray) -> FloatArray:
        """Where the line, linear in e^eps, between a grid point and the next meets the target; in nats.

        delta is convex in e^eps: the line between two upper bounds is one.
        """
        before, after = np.exp(np.minimum(before, 700.0)), np.exp(after)
        with np.errstate(divide="ignore", invalid="ignore"):
            back = np.log1p(np.expm1(-self.grid.step) * (1.0 - after) / (before - after))
        at_zero = lower + self.origin < 0.0
        epsilons = (lower + 1.0 + self.origin) * self.grid.step + np.where(at_zero, 0.0, back) + self.slack
        return np.asarray(np.maximum(epsilons, 0.0))

    def _picked(self, rows: IntArray | NDArray[np.bool_]) -> Curves:
        columns = (getattr(self, name) for name in self.__slots__[1:])
        return Curves(self.grid, *(column[..., rows] for column in columns))


def _in_blocks(series: ComplexArray) -> ComplexArray:
    """Shape [frequencies, histories] to [blocks, frequencies in a block, histories], with zeros at the end."""
    frequencies, histories = series.shape
    size = 2 ** math.ceil(math.log2(frequencies) / 2.0)
    blocks = np.zeros((-(-frequencies // size) * size, histories), dtype=np.complex128)
    blocks[:frequencies] = series
    return blocks.reshape(-1, size, histories)
