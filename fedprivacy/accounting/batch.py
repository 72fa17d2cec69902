"""Epsilon by the privacy loss distribution, for many histories at once.

The bound is that of `pld`, on the same grids, from the lowest frequencies alone: microseconds for a history instead of
a millisecond. Histories that are not suited are left to `pld`.

>>> import numpy as np
>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> composer = BatchComposer()
>>> event, other = PoissonSampledGaussian(0.01, 4.0), PoissonSampledGaussian(0.02, 4.0)
>>> counts = composer.counts([{event: 10_000}, {event: 5_000, other: 1_000}])
>>> composer.epsilons(counts, np.array([1e-5, 1e-5])).round(2).tolist()
[0.95, 0.9]

Formal guarantee. With E the product of the tilted transforms' powers, A the transform of the hockey stick and k the
frequencies, delta(eps) is at most

    e^(K(t) - t eps) / N * (sum_{|k| <= kept} E_k A_k e^(i w_k eps) + sum_{|k| > kept} |E_k| |A_k|) + aliases >= 0

on the grid (`pld` says why aliases only add). The second sum is at most the product of each event's largest magnitude
beyond `kept`, each to its power, times sum |A_k|; it is charged, and so are the rounding errors of the first. Both
directions count: if the second one, at the epsilon of the first, needs no more than delta, the first is the larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedprivacy.accounting import pld
from fedprivacy.accounting.arrays import BoolArray, ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.pairs import ROUNDING, Direction
from fedprivacy.accounting.privacy_loss import DiscreteLoss, DiscreteLosses, discretise_events
from fedprivacy.accounting.spectra import LEVELS, LossGrid, Moments, Placements, Spectrum, kernel, levels, placements
from fedprivacy.values.events import Event, History

_PLANNED_AT_ONCE = 2**11
_TRANSFORMED_AT_ONCE = 64  # events
_EVALUATED_AT_ONCE = 2**17  # frequencies times histories
_MOST_PLANS = 6
_MOST_LOSSES = 2**9  # discretised losses, of twenty thousand numbers each
_MOST_REMEMBERED = 2**26  # numbers in spectra, half a gigabyte
_NEGLIGIBLE = 1e-5  # share of delta that may be charged before a history is left to `pld`
_LARGEST_LOG = 745.0  # largest absolute log of a magnitude that is not zero
_GUESSES = 12
_NEAR = 0.25  # distance from the target, in grid points, that is near enough
_MOST_STEPS = 60  # maximum number of evaluations between the guess and the grid point


class BatchComposer:
    """Composer of many histories at once, which caches the spectra of their events.

    Not safe for concurrent use.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []  # event of each column of the counts
        self._column: dict[Event, int] = {}
        self._moments = Moments.of([])
        # By the event's column: a spectrum, and the number of executions for which its frequencies suffice.
        self._spectra: dict[tuple[Direction, LossGrid], dict[int, tuple[float, Spectrum]]] = {}
        self._remembered = 0
        # Discretised together with others, at some place; while epsilons are computed.
        self._losses: dict[tuple[int, int, int], tuple[DiscreteLosses, int]] = {}

    def columns(self, events: Sequence[Event]) -> IntArray:
        """Return the columns of events in `epsilons`, shape [events]; new events get new columns."""
        new = [event for event in dict.fromkeys(events) if event not in self._column]
        if new:
            self._column |= {event: len(self.events) + place for place, event in enumerate(new)}
            self.events += new
            self._moments = Moments.concatenate([self._moments, Moments.of(new)])
        return np.array([self._column[event] for event in events], dtype=np.int64)

    def counts(self, histories: Sequence[History]) -> scipy.sparse.csr_array:
        """Count the executions of each event in each history, shape [histories, columns]."""
        columns = self.columns([event for history in histories for event in history])
        counts = np.array([count for history in histories for count in history.values()], dtype=np.float64)
        ends = np.append(0, np.cumsum([len(history) for history in histories])).astype(np.int64)
        return scipy.sparse.csr_array((counts, columns, ends), shape=(len(histories), len(self.events)))

    def epsilons(self, counts: scipy.sparse.csr_array, deltas: FloatArray) -> FloatArray:
        """Compute upper bounds on the epsilon of every history.

        Args:
            counts: number of executions of each event, shape [histories, columns], under one neighbouring relation in
                each row (which is not checked here).
            deltas: shape [histories], each in (0, 1).

        Returns:
            Epsilons in nats, shape [histories], as `pld.epsilon` gives them, up to 1e-5 of each.
        """
        counts = scipy.sparse.csr_array(counts, dtype=np.float64, copy=True)
        counts.eliminate_zeros()
        counts.resize(counts.shape[0], len(self.events))  # events may have been added since
        epsilons = np.zeros(len(deltas))
        busy = np.flatnonzero(np.diff(counts.indptr))
        if busy.size:
            epsilons[busy] = self._epsilons(counts[busy] if busy.size < len(deltas) else counts, deltas[busy])
        self._losses.clear()
        if self._remembered > _MOST_REMEMBERED:
            self._spectra.clear()
            self._remembered = 0
        return epsilons

    def _epsilons(self, counts: scipy.sparse.csr_array, deltas: FloatArray) -> FloatArray:
        known = np.full(len(deltas), np.inf)
        unsuited = np.zeros(len(deltas), dtype=np.bool_)
        waiting = np.arange(len(deltas))
        for _ in range(_MOST_PLANS):
            part, some = (counts, deltas) if waiting.size == len(deltas) else (counts[waiting], deltas[waiting])
            placed = self._placements(part, some, known[waiting])
            found = self._epsilons_on_grids(placed, part, some)
            unsuited[waiting] = np.isnan(found)
            known[waiting] = np.fmin(placed.known, found)
            waiting = waiting[found < placed.lowest]  # their placements were made for another epsilon
            if not waiting.size:
                break
        for row in np.flatnonzero(unsuited).tolist():
            known[row] = min(known[row], pld.epsilon(self._history(counts, row), float(deltas[row])))
        return known

    def _placements(self, counts: scipy.sparse.csr_array, deltas: FloatArray, known: FloatArray) -> Placements:
        starts = range(0, len(deltas), _PLANNED_AT_ONCE)
        parts = [slice(start, start + _PLANNED_AT_ONCE) for start in starts]
        return Placements.concatenate(
            [placements(self._moments.compose(counts[part]), deltas[part], known[part]) for part in parts]
        )

    def _epsilons_on_grids(self, placed: Placements, counts: scipy.sparse.csr_array, deltas: FloatArray) -> FloatArray:
        """Compute epsilons on the grids, shape [histories]; NaN where a history is not suited."""
        epsilons = np.full(len(deltas), np.nan)
        for grid, rows in _by_grid(placed):
            part, some = counts[rows], deltas[rows]
            larger = np.full(rows.size, np.nan)
            for few, curves in self._curves(grid, Direction.REMOVE, part, some, placed.estimate[rows]):
                larger[few] = curves.epsilons()
            found = np.flatnonzero(~np.isnan(larger))
            if found.size:
                doubtful = np.zeros(found.size, dtype=np.bool_)
                added = part[found], some[found], larger[found]
                for few, curves in self._curves(grid.coarse, Direction.ADD, *added, rough=True):
                    doubtful[few] = curves.exceed(larger[found[few]])
                found = found[doubtful]
            if found.size:
                for few, curves in self._curves(grid, Direction.ADD, part[found], some[found], larger[found]):
                    larger[found[few]] = curves.epsilons_above(larger[found[few]])
            epsilons[rows] = larger
        return epsilons

    def _curves(
        self,
        grid: LossGrid,
        direction: Direction,
        counts: scipy.sparse.csr_array,
        deltas: FloatArray,
        estimates: FloatArray,
        *,
        rough: bool = False,
    ) -> Iterator[tuple[IntArray, Curves]]:
        """Yield histories that are computed together, and their curves: of fewer frequencies, if `rough` is enough."""
        columns, powers = _compact(counts)
        fewest = np.full(columns.size, np.inf)
        np.minimum.at(fewest, powers.indices, powers.data)
        spectra = self._spectra_of(columns, direction, grid, fewest)
        needed = levels(powers @ np.stack([spectrum.log_beyond for spectrum in spectra]), rough=rough)
        computed = np.array([spectrum.level for spectrum in spectra])[powers.indices]
        level = np.minimum(needed, np.minimum.reduceat(computed, powers.indptr[:-1]))
        for some in _portions(level):
            places, part = _compact(powers[some])
            spectrum = Spectrum.stack([spectra[place] for place in places], grid, int(level[some].max()))
            yield some, Curves.of(grid, spectrum, level[some], part, deltas=deltas[some], estimates=estimates[some])

    def _spectra_of(self, columns: IntArray, direction: Direction, grid: LossGrid, steps: FloatArray) -> list[Spectrum]:
        """Return the spectra of some columns' events, with as many frequencies as `steps` executions of each need."""
        known = self._spectra.setdefault((direction, grid), {})
        wanted = zip(columns.tolist(), steps.tolist(), strict=True)
        missing = [(column, fewest) for column, fewest in wanted if column not in known or known[column][0] > fewest]
        for start in range(0, len(missing), _TRANSFORMED_AT_ONCE):
            some = missing[start : start + _TRANSFORMED_AT_ONCE]
            losses = self._losses_of([column for column, _ in some], direction, grid)
            fewest_steps = np.array([fewest for _, fewest in some])
            for (column, fewest), spectrum in zip(some, Spectrum.of(losses, grid, fewest_steps), strict=True):
                known[column] = fewest, spectrum
                self._remembered += 2 * spectrum.angle.size
        return [known[column][1] for column in columns.tolist()]

    def _losses_of(self, columns: list[int], direction: Direction, grid: LossGrid) -> list[DiscreteLoss]:
        """Return the discretised losses of some columns' events; grids that differ only in tilt and period share them,
        and so do a grid and its coarser one.
        """
        fine, reach = grid.log2_step - grid.coarser, grid.reach
        missing = [column for column in columns if (column, fine, reach) not in self._losses]
        if len(self._losses) + len(missing) > _MOST_LOSSES:
            self._losses.clear()
            missing = columns
        for places, together in discretise_events([self.events[column] for column in missing], fine, reach):
            self._losses |= {(missing[at], fine, reach): (together, one) for one, at in enumerate(places.tolist())}
        found = (self._losses[column, fine, reach] for column in columns)
        return [together.coarsen(grid.coarser).of(direction)[one] for together, one in found]

    def _history(self, counts: scipy.sparse.csr_array, row: int) -> dict[Event, int]:
        entries = slice(counts.indptr[row], counts.indptr[row + 1])
        executed = zip(counts.indices[entries], counts.data[entries], strict=True)
        return {self.events[column]: int(count) for column, count in executed}


def _compact(counts: scipy.sparse.csr_array) -> tuple[IntArray, scipy.sparse.csr_array]:
    """Return the columns that are not empty, and the counts in these columns alone."""
    columns, places = np.unique(counts.indices, return_inverse=True)
    return columns, scipy.sparse.csr_array((counts.data, places, counts.indptr), shape=(counts.shape[0], columns.size))


def _portions(level: IntArray) -> Iterator[IntArray]:
    """Yield groups of histories that need as many frequencies.

    So the last bit of an epsilon tells nothing of the others that are computed with it: a resumed run has the same.
    """
    for one in np.unique(level):
        rows = np.flatnonzero(level == one)
        size = max(1, _EVALUATED_AT_ONCE // int(LEVELS[one]))
        yield from (rows[start : start + size] for start in range(0, rows.size, size))


def _by_grid(placed: Placements) -> Iterator[tuple[LossGrid, IntArray]]:
    """Group histories by their grid."""
    suited = np.flatnonzero(placed.points)
    columns = (placed.points, placed.tilt, placed.reach, placed.log2_step)
    keys = np.stack([column[suited] for column in columns])
    order = np.lexsort(keys)
    keys = keys[:, order]
    borders = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    for group in np.split(order, borders) if order.size else ():
        points, tilt, reach, log2_step = (int(array[suited[group[0]]]) for array in columns)
        yield LossGrid(log2_step, reach, tilt, points), suited[group]


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves log delta(eps) of histories, up to charges; every array has a column or an entry for each history."""

    grid: LossGrid
    origin: IntArray  # index of the grid point from which points are counted
    # Coefficients of e^(i w k), lowest frequency k first, shape [blocks, frequencies in a block, histories].
    series: ComplexArray
    turns: FloatArray  # offset of the origin from the first masses, in grid points modulo the period, shape [histories]
    charge: FloatArray  # bound on what rounding and dropped frequencies add to the series, shape [histories]
    log_scale: FloatArray  # log of the factor that undoes the tilt's normalisation, shape [histories]
    log_target: FloatArray  # log of the share of delta for finite losses, shape [histories]
    slack: FloatArray  # nats to add to epsilon, shape [histories]

    @classmethod
    def of(
        cls,
        grid: LossGrid,
        spectrum: Spectrum,
        level: IntArray,
        counts: scipy.sparse.csr_array,
        *,
        deltas: FloatArray,
        estimates: FloatArray,
    ) -> Curves:
        """Multiply the transforms of each history's events.

        `spectrum` has a row for each event; `counts` are the executions in each history, shape [histories, events].
        `level`, an index into `LEVELS`, `deltas`, and `estimates` of epsilon in nats have shape [histories].
        """
        rows = np.arange(level.size)
        lowest, beyond = kernel(grid)
        size = spectrum.angle.shape[1]
        weight = lowest[:size]
        kept = np.arange(size) <= LEVELS[level][:, None]
        magnitude = np.exp(counts @ spectrum.log_magnitude)
        magnitude *= kept
        magnitude *= np.abs(weight)
        angle = counts @ spectrum.angle
        angle += np.angle(weight)
        series = np.empty((size, level.size), dtype=np.complex128)
        np.multiply(magnitude.T, np.cos(angle).T, out=series.real)
        np.multiply(magnitude.T, np.sin(angle, out=angle).T, out=series.imag)
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
            charge=relative * magnitude.sum(axis=1) + dropped,
            log_scale=counts @ spectrum.log_scale,
            log_target=log_target,
            slack=counts @ spectrum.slack,
        )

    def excess(self, points: FloatArray) -> FloatArray:
        """Compute log of delta over the target at grid points counted from each history's origin; shape [histories]."""
        return self._excess(points, self._values(points))

    def _excess(self, points: FloatArray, values: FloatArray) -> FloatArray:
        """Compute `excess` where the series' real part is known."""
        bounds = np.maximum(values, 0.0) + self.charge
        tilts = self.grid.tilt_per_step * (self.origin + points)
        rounding = ROUNDING * (100.0 + np.abs(self.log_scale) + np.abs(tilts))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(bounds) + self.log_scale - tilts + rounding - self.log_target)

    def _values(self, points: FloatArray) -> FloatArray:
        """Compute the series' real part: Horner's scheme over blocks of powers."""
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
        """Bound epsilon, in nats, shape [histories]; NaN where charges are too large, or no bound is found."""
        points = self._guess()
        lower = np.maximum(np.floor(points), -1.0 - self.origin.astype(np.float64))
        before, values = self.excess(lower), self._values(lower + 1.0)
        after = self._excess(lower + 1.0, values)
        far = np.flatnonzero((after > 0.0) | ((before <= 0.0) & (lower + self.origin >= 0.0)))
        if far.size:
            curves = self._select(far)
            lower[far] = curves._search(lower[far] + (after[far] > 0.0))
            before[far], values[far] = curves.excess(lower[far]), curves._values(lower[far] + 1.0)
            after[far] = curves._excess(lower[far] + 1.0, values[far])
        found = (after <= 0.0) & ((before > 0.0) | (lower + self.origin < 0.0))
        sharp = self.charge <= _NEGLIGIBLE * values
        return np.where(found & sharp, self._between(lower, before, after), np.nan)

    def _search(self, start: FloatArray) -> FloatArray:
        """Return the last point before the target is met, shape [histories]: with ever longer steps, then bisection."""
        low, high = np.full(start.shape, -np.inf), np.full(start.shape, np.inf)
        floor, at, stride = -1.0 - self.origin, start, 1.0
        for _ in range(_MOST_STEPS):
            unmet = (self.excess(at) > 0.0) | (at <= floor)
            low, high = np.where(unmet, at, low), np.where(unmet, high, at)
            found = high - low <= 1.0
            if found.all():
                break
            farther = np.where(np.isinf(high), low + stride, high - stride)
            at = np.where(np.isfinite(high - low), np.floor(0.5 * (low + high)), np.maximum(farther, floor))
            at, stride = np.where(found, low, at), 2.0 * stride
        return np.where(np.isinf(low), high - 1.0, low)

    def exceed(self, floors: FloatArray) -> BoolArray:
        """Return where epsilon may be larger than `floors`, in nats, shape [histories]."""
        points: FloatArray = np.floor((floors - self.slack) / self.grid.step) - self.origin
        return np.asarray(~(self.excess(points) <= 0.0))

    def epsilons_above(self, floors: FloatArray) -> FloatArray:
        """Compute the larger of `floors` and `epsilons`, in nats, shape [histories]; fast if the floors are larger."""
        larger = np.flatnonzero(self.exceed(floors))
        results = floors.copy()
        if larger.size:
            results[larger] = np.maximum(floors[larger], self._select(larger).epsilons())
        return results

    def _guess(self) -> FloatArray:
        """Find by secants where the target is nearly met, in grid points from the origin; shape [histories]."""
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
                curves, left, move, slope, excess = curves._select(far), left[far], move[far], slope[far], excess[far]
            known, excess = excess, curves.excess(points[left])
            with np.errstate(divide="ignore", invalid="ignore"):
                secant = (excess - known) / move
            usual = (secant < -0.1 * self.grid.tilt_per_step) & (secant > -10.0 * self.grid.tilt_per_step)
            slope = np.where(usual & (np.abs(move) > _NEAR), secant, slope)
        return points

    def _between(self, lower: FloatArray, before: FloatArray, after: FloatArray) -> FloatArray:
        """Find where the line, linear in e^eps, between a grid point and the next meets the target; in nats.

        delta is convex in e^eps: the line between two upper bounds is an upper bound.
        """
        before, after = np.exp(np.minimum(before, 700.0)), np.exp(after)
        with np.errstate(divide="ignore", invalid="ignore"):
            back = np.log1p(np.expm1(-self.grid.step) * (1.0 - after) / (before - after))
        at_zero = lower + self.origin < 0.0
        epsilons = (lower + 1.0 + self.origin) * self.grid.step + np.where(at_zero, 0.0, back) + self.slack
        return np.asarray(np.maximum(epsilons, 0.0))

    def _select(self, rows: IntArray | BoolArray) -> Curves:
        columns = (getattr(self, name) for name in self.__slots__[1:])
        return Curves(self.grid, *(column[..., rows] for column in columns))


def _in_blocks(series: ComplexArray) -> ComplexArray:
    """Reshape [frequencies, histories] to [blocks, frequencies in a block, histories], with zeros at the end."""
    frequencies, histories = series.shape
    size = 2 ** math.ceil(math.log2(frequencies) / 2.0)
    blocks = np.zeros((-(-frequencies // size) * size, histories), dtype=np.complex128)
    blocks[:frequencies] = series
    return blocks.reshape(-1, size, histories)
