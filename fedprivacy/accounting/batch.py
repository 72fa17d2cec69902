"""Epsilon by the privacy loss distribution, for many histories at once.

The same bound as `pld`, on the same grids, from the lowest frequencies alone: microseconds for a history instead of a
millisecond. Histories that it does not suit are left to `pld`.

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
directions count: where the second one, at the epsilon of the first, needs no more than delta, the first is the larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_array

from fedprivacy.accounting import pld
from fedprivacy.accounting.arrays import FloatArray, IntArray
from fedprivacy.accounting.curves import Curves
from fedprivacy.accounting.pairs import Direction
from fedprivacy.accounting.plans import Moments, Plans, plans
from fedprivacy.accounting.spectra import LEVELS, Grid, Spectrum, levels
from fedprivacy.values.events import Event, History

_PLANNED_AT_ONCE = 2**13
_EVALUATED_AT_ONCE, _FEW = 2**17, 2**16  # frequencies times histories
_MOST_PLANS = 6
_MOST_REMEMBERED = 2**26  # numbers in spectra, half a gigabyte


class BatchComposer:
    """Composes many histories at once, and remembers the spectra of their events.

    Not safe for concurrent use.

    Attributes:
        events: what the columns of the counts stand for.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._column: dict[Event, int] = {}
        self._moments = Moments.of([])
        # By the event's column: a spectrum, and how many executions its frequencies are enough for.
        self._spectra: dict[tuple[Direction, Grid], dict[int, tuple[float, Spectrum]]] = {}
        self._remembered = 0

    def columns(self, events: Sequence[Event]) -> IntArray:
        """The columns that stand for events in `epsilons`, shape [events]; new events get new ones."""
        new = [event for event in dict.fromkeys(events) if event not in self._column]
        if new:
            self._column |= {event: len(self.events) + place for place, event in enumerate(new)}
            self.events += new
            self._moments = Moments.joined([self._moments, Moments.of(new)])
        return np.array([self._column[event] for event in events], dtype=np.int64)

    def counts(self, histories: Sequence[History]) -> csr_array:
        """How often each history executed each event, shape [histories, columns]."""
        columns = self.columns([event for history in histories for event in history])
        counts = np.array([count for history in histories for count in history.values()], dtype=np.float64)
        ends = np.append(0, np.cumsum([len(history) for history in histories])).astype(np.int64)
        return csr_array((counts, columns, ends), shape=(len(histories), len(self.events)))

    def epsilons(self, counts: csr_array, deltas: FloatArray) -> FloatArray:
        """Upper bounds on the epsilon of every history.

        Args:
            counts: how often each event was executed, shape [histories, columns], under one neighbouring relation in
                each row (which is not checked here).
            deltas: shape [histories], each in (0, 1).

        Returns:
            Epsilons in nats, shape [histories], as `pld.epsilon` gives them, up to 1e-5 of each.
        """
        counts = csr_array(counts, dtype=np.float64, copy=True)
        counts.eliminate_zeros()
        counts.resize(counts.shape[0], len(self.events))  # events may have come since
        epsilons = np.zeros(len(deltas))
        busy = np.flatnonzero(np.diff(counts.indptr))
        if busy.size:
            epsilons[busy] = self._epsilons(counts[busy] if busy.size < len(deltas) else counts, deltas[busy])
        if self._remembered > _MOST_REMEMBERED:
            self._spectra.clear()
            self._remembered = 0
        return epsilons

    def _epsilons(self, counts: csr_array, deltas: FloatArray) -> FloatArray:
        known = np.full(len(deltas), np.inf)
        unsuited = np.zeros(len(deltas), dtype=np.bool_)
        waiting = np.arange(len(deltas))
        for _ in range(_MOST_PLANS):
            part, some = (counts, deltas) if waiting.size == len(deltas) else (counts[waiting], deltas[waiting])
            planned = self._plans(part, some, known[waiting])
            found = self._planned(planned, part, some)
            unsuited[waiting] = np.isnan(found)
            known[waiting] = np.fmin(planned.known, found)
            waiting = waiting[found < planned.lowest]  # then the plan was made for another epsilon
            if not waiting.size:
                break
        for row in np.flatnonzero(unsuited).tolist():
            known[row] = min(known[row], pld.epsilon(self._history(counts, row), float(deltas[row])))
        return known

    def _plans(self, counts: csr_array, deltas: FloatArray, known: FloatArray) -> Plans:
        starts = range(0, len(deltas), _PLANNED_AT_ONCE)
        parts = [slice(start, start + _PLANNED_AT_ONCE) for start in starts]
        return Plans.joined([plans(self._moments.composed(counts[part]), deltas[part], known[part]) for part in parts])

    def _planned(self, planned: Plans, counts: csr_array, deltas: FloatArray) -> FloatArray:
        """Epsilons as planned, shape [histories]; NaN where a history is not suited."""
        epsilons = np.full(len(deltas), np.nan)
        for grid, rows in _by_grid(planned):
            part, some = counts[rows], deltas[rows]
            larger = np.full(rows.size, np.nan)
            for few, curves in self._curves(grid, Direction.REMOVE, part, some, planned.estimate[rows]):
                larger[few] = curves.epsilons()
            found = np.flatnonzero(~np.isnan(larger))
            if found.size:
                for few, curves in self._curves(grid, Direction.ADD, part[found], some[found], larger[found]):
                    larger[found[few]] = curves.epsilons_above(larger[found[few]])
            epsilons[rows] = larger
        return epsilons

    def _curves(
        self, grid: Grid, direction: Direction, counts: csr_array, deltas: FloatArray, estimates: FloatArray
    ) -> Iterator[tuple[IntArray, Curves]]:
        """Histories that are computed together, and their curves."""
        columns, powers = _compact(counts)
        fewest = np.full(columns.size, np.inf)
        np.minimum.at(fewest, powers.indices, powers.data)
        spectra = self._spectra_of(columns, direction, grid, fewest)
        needed = levels(powers @ np.stack([spectrum.log_beyond for spectrum in spectra]))
        computed = np.array([spectrum.level for spectrum in spectra])[powers.indices]
        level = np.minimum(needed, np.minimum.reduceat(computed, powers.indptr[:-1]))
        for some in _portions(level):
            places, part = _compact(powers[some])
            spectrum = Spectrum.stacked([spectra[place] for place in places], int(level[some].max()))
            yield some, Curves.of(grid, spectrum, level[some], part, deltas=deltas[some], estimates=estimates[some])

    def _spectra_of(self, columns: IntArray, direction: Direction, grid: Grid, steps: FloatArray) -> list[Spectrum]:
        """Of some columns' events, with as many frequencies as at least so many `steps` of each ask for."""
        known = self._spectra.setdefault((direction, grid), {})
        for column, fewest in zip(columns.tolist(), steps.tolist(), strict=True):
            if column not in known or known[column][0] > fewest:
                known[column] = fewest, Spectrum.of(self.events[column], direction, grid, fewest)
                self._remembered += 2 * known[column][1].angle.size
        return [known[column][1] for column in columns.tolist()]

    def _history(self, counts: csr_array, row: int) -> dict[Event, int]:
        entries = slice(counts.indptr[row], counts.indptr[row + 1])
        return {
            self.events[column]: int(count)
            for column, count in zip(counts.indices[entries], counts.data[entries], strict=True)
        }


def _compact(counts: csr_array) -> tuple[IntArray, csr_array]:
    """The columns that are not empty, and the counts in these columns alone."""
    columns, places = np.unique(counts.indices, return_inverse=True)
    return columns, csr_array((counts.data, places, counts.indptr), shape=(counts.shape[0], columns.size))


def _portions(level: IntArray) -> Iterator[IntArray]:
    """Histories that are worth computing together: few, or those that need as many frequencies; not too many."""
    if level.size * LEVELS[level.max()] <= _FEW:
        yield np.arange(level.size)
        return
    for one in np.unique(level):
        rows = np.flatnonzero(level == one)
        size = max(1, _EVALUATED_AT_ONCE // int(LEVELS[one]))
        yield from (rows[start : start + size] for start in range(0, rows.size, size))


def _by_grid(planned: Plans) -> Iterator[tuple[Grid, IntArray]]:
    """Histories that share a grid."""
    suited = np.flatnonzero(planned.points)
    columns = (planned.points, planned.tilt, planned.reach, planned.log2_step)
    keys = np.stack([column[suited] for column in columns])
    order = np.lexsort(keys)
    keys = keys[:, order]
    borders = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    for group in np.split(order, borders) if order.size else ():
        points, tilt, reach, log2_step = (int(array[suited[group[0]]]) for array in columns)
        yield Grid(log2_step, reach, tilt, points), suited[group]
