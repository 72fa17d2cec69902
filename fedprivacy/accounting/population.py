"""Every client's privacy loss, for millions of clients with different histories, round by round.

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> population = PopulationAccountant()
>>> clients = population.enrol(["hospital/a", "hospital/b"], deltas=[1e-5, 1e-6])
>>> mechanisms = population.mechanisms([PoissonSampledGaussian(0.01, 1.1), PoissonSampledGaussian(0.02, 1.1)])
>>> population.record(clients, mechanisms, steps=[500, 250])
>>> population.epsilons().round(2).tolist()
[1.08, 1.95]

A client's state is the number of executions of each mechanism on its dataset, and nothing else: a round changes a
number. Epsilons are computed on request, for the clients that a round has changed, once for all that share a history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivacy.accounting.arrays import BoolArray, FloatArray, IntArray
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.histories import check_delta
from fedprivacy.values.events import Event, History, NeighbouringRelation

MOST_STEPS = 2**31 - 1  # maximum for one mechanism on one dataset
_MECHANISM_BITS, _STEP_BITS, _DELTA_BITS = 24, 31, 8
_MECHANISM = 2**_MECHANISM_BITS - 1
_MOST_REMEMBERED = 2**20  # maximum number of cached epsilons


class PopulationAccountant:
    """The accounts of a population of datasets under one neighbouring relation.

    Formal guarantee: `epsilons` bounds each dataset's privacy loss as `pld.epsilon` does, at the dataset's own delta.
    The reading is an odometer's (see `filters`), not a budget.

    Not safe for concurrent use.

    Args:
        relation: neighbouring relation of every event.
    """

    def __init__(self, relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE) -> None:
        self._relation = relation
        self._composer = BatchComposer()
        self._row: dict[str, int] = {}
        self._delta: FloatArray = np.empty(0)
        self._delta_number = np.empty(0, dtype=np.int16)
        self._epsilon: FloatArray = np.empty(0)
        self._changed = np.empty(0, dtype=np.bool_)
        self._keys, self._steps = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._memo = _Memo()

    def __len__(self) -> int:
        return len(self._row)

    def enrol(self, dataset_ids: Sequence[str], deltas: ArrayLike) -> IntArray:
        """Open accounts, or find those that are open.

        Args:
            dataset_ids: datasets of the accounts.
            deltas: one delta for each dataset, or one for all.

        Returns:
            Rows of the datasets, for the other methods, shape [datasets].

        Raises:
            ValueError: a delta is outside (0, 1), or differs from that of the open account.
        """
        wanted = np.broadcast_to(np.asarray(deltas, dtype=np.float64), len(dataset_ids))
        for delta in wanted[~((wanted > 0.0) & (wanted < 1.0))][:1]:
            check_delta(float(delta))
        before = len(self._row)
        rows = np.array([self._row.setdefault(name, len(self._row)) for name in dataset_ids], dtype=np.int64)
        grown = len(self._row) - before
        delta = np.concatenate([self._delta, np.full(grown, np.nan)])
        delta[rows] = np.where(np.isnan(delta[rows]), wanted, delta[rows])
        for place in np.flatnonzero(delta[rows] != wanted)[:1]:
            self._row = dict(list(self._row.items())[:before])
            raise ValueError(
                f"dataset {dataset_ids[place]} has delta {delta[rows[place]]:g} and comes with {wanted[place]:g} now; "
                "an account keeps the delta that it was opened with."
            )
        if grown:
            self._delta = delta
            self._epsilon = np.concatenate([self._epsilon, np.zeros(grown)])
            self._changed = np.concatenate([self._changed, np.zeros(grown, dtype=np.bool_)])
            self._number_deltas()
        return rows

    def _number_deltas(self) -> None:
        """Number the deltas, so that epsilons can be cached by them; if there are too many, nothing is cached."""
        distinct, place = np.unique(self._delta, return_inverse=True)
        number = np.where(distinct.size <= 2**_DELTA_BITS, place, -1).astype(np.int16)
        if not np.array_equal(number[: self._delta_number.size], self._delta_number):
            self._memo = _Memo()
        self._delta_number = number

    def mechanisms(self, events: Sequence[Event]) -> IntArray:
        """Return the numbers of events for `record`, shape [events].

        Raises:
            ValueError: an event has another relation than the population, or there are too many different ones.
        """
        for event in events:
            if event.relation != self._relation:
                raise ValueError(
                    f"the event {event} has another neighbouring relation than the accounts ({self._relation}), and no "
                    "theorem composes the two; keep one population for each relation."
                )
        numbers = self._composer.columns(events)
        if numbers.size and numbers.max() >= 2**_MECHANISM_BITS:
            raise ValueError(
                f"there are more than {2**_MECHANISM_BITS} different events; round the sampling rates up, so that "
                "datasets share some."
            )
        return numbers

    def record(self, rows: ArrayLike, mechanisms: ArrayLike, steps: ArrayLike) -> None:
        """Add executions to accounts.

        Args:
            rows: rows of the accounts, as `enrol` returns them, shape [charges]; a row may appear more than once.
            mechanisms: numbers of the mechanisms, as `mechanisms` returns them; one for each charge, or one for all.
            steps: numbers of executions; one for each charge, or one for all.

        Raises:
            ValueError: a row or a mechanism is unknown, a number of steps is negative or no integer, or a total would
                exceed `MOST_STEPS`. Nothing is recorded then.
        """
        keys, added = self._charges(rows, mechanisms, steps)
        at, known = _locate(self._keys, keys)
        total = added.copy()
        total[known] += self._steps[at[known]]
        _check_totals(total)
        self._steps[at[known]] = total[known]
        self._keys = np.insert(self._keys, at[~known], keys[~known])
        self._steps = np.insert(self._steps, at[~known], total[~known])
        self._changed[keys >> _MECHANISM_BITS] = True

    def restate(
        self, rows: ArrayLike, mechanisms: ArrayLike, steps: ArrayLike, *, accounts: ArrayLike | None = None
    ) -> None:
        """Replace the executions of accounts by these, as they stand in a ledger.

        Epsilons of unchanged accounts are not computed again. Arguments and errors are those of `record`.

        Args:
            rows: rows of the accounts, shape [charges]; only rows of `accounts`.
            mechanisms: numbers of the mechanisms.
            steps: numbers of executions.
            accounts: rows of the restated accounts, shape [accounts]; None: all.
        """
        keys, total = self._charges(rows, mechanisms, steps)
        _check_totals(total)
        whose = np.arange(len(self)) if accounts is None else np.unique(_whole("accounts", accounts, len(self) - 1))
        if not np.isin(keys >> _MECHANISM_BITS, whose).all():
            raise ValueError("rows name an account that accounts does not; name each account that is restated.")
        starts, stops = np.searchsorted(self._keys, [whose << _MECHANISM_BITS, (whose + 1) << _MECHANISM_BITS])
        old = _ranges(starts, stops - starts)
        both = np.union1d(self._keys[old], keys)
        before, after = np.zeros(both.size, dtype=np.int64), np.zeros(both.size, dtype=np.int64)
        before[np.searchsorted(both, self._keys[old])] = self._steps[old]
        after[np.searchsorted(both, keys)] = total
        self._changed[both[before != after] >> _MECHANISM_BITS] = True
        kept, kept_steps = np.delete(self._keys, old), np.delete(self._steps, old)
        at = np.searchsorted(kept, keys)
        self._keys, self._steps = np.insert(kept, at, keys), np.insert(kept_steps, at, total)

    def _charges(self, rows: ArrayLike, mechanisms: ArrayLike, steps: ArrayLike) -> tuple[IntArray, IntArray]:
        """Return the keys of (row, mechanism), increasing, and the steps of each; raise as `record`."""
        whose = _whole("rows", rows, len(self) - 1)
        what = _whole("mechanisms", mechanisms, len(self._composer.events) - 1)
        counted = np.broadcast_to(_whole("steps", steps, MOST_STEPS), whose.shape)
        keys, places = np.unique(whose << _MECHANISM_BITS | what, return_inverse=True)
        total = np.zeros(keys.size, dtype=np.int64)
        np.add.at(total, places, counted)
        return keys, total

    def history(self, row: int) -> History:
        """Return the number of executions of each event on a dataset."""
        start, stop = np.searchsorted(self._keys, [row << _MECHANISM_BITS, (row + 1) << _MECHANISM_BITS])
        numbers, steps = self._keys[start:stop] & _MECHANISM, self._steps[start:stop]
        executed = zip(numbers.tolist(), steps.tolist(), strict=True)
        return {self._composer.events[number]: count for number, count in executed if count}

    def epsilons(self, rows: IntArray | None = None) -> FloatArray:
        """Compute each dataset's privacy loss at its delta, in nats.

        Args:
            rows: rows of the datasets, shape [datasets]; None: all, in the order of enrolment.
        """
        changed = np.flatnonzero(self._changed) if rows is None else np.unique(rows[self._changed[rows]])
        if changed.size:
            self._epsilon[changed] = self._compute(changed)
            self._changed[changed] = False
        return self._epsilon.copy() if rows is None else self._epsilon[rows]

    def _compute(self, rows: IntArray) -> FloatArray:
        """Compute the epsilons of datasets whose histories have changed, shape of `rows`, in increasing order."""
        starts, stops = np.searchsorted(self._keys, [rows << _MECHANISM_BITS, (rows + 1) << _MECHANISM_BITS])
        entries, deltas = stops - starts, self._delta[rows]
        epsilons = np.empty(rows.size)
        simple = entries == 1
        if simple.any():
            epsilons[simple] = self._simple(rows[simple], starts[simple])
        if not simple.all():
            several = np.flatnonzero(~simple)
            epsilons[several] = self._compose(starts[several], entries[several], deltas[several])
        return epsilons

    def _simple(self, rows: IntArray, places: IntArray) -> FloatArray:
        """Compute the epsilons of datasets with one entry each, once for equal mechanisms, steps and deltas."""
        one, number = np.ones_like(places), self._delta_number[rows].astype(np.int64)
        if number[0] < 0:
            return self._compose(places, one, self._delta[rows])
        key = ((self._keys[places] & _MECHANISM) << _STEP_BITS | self._steps[places]) << _DELTA_BITS | number
        keys, first, back = np.unique(key, return_index=True, return_inverse=True)

        def compute(missing: IntArray) -> FloatArray:
            some = first[missing]
            return self._compose(places[some], one[some], self._delta[rows[some]])

        return self._memo.get(keys, compute)[back]

    def _compose(self, starts: IntArray, entries: IntArray, deltas: FloatArray) -> FloatArray:
        ends, places = np.append(0, entries.cumsum()), _ranges(starts, entries)
        counts = scipy.sparse.csr_array(
            (self._steps[places].astype(np.float64), self._keys[places] & _MECHANISM, ends),
            shape=(deltas.size, len(self._composer.events)),
        )
        return self._composer.epsilons(counts, deltas)


class _Memo:
    """Cache of epsilons by key: a dictionary at the speed of sorted arrays."""

    def __init__(self) -> None:
        self._keys, self._values = np.empty(0, dtype=np.int64), np.empty(0)

    def get(self, keys: IntArray, compute: Callable[[IntArray], FloatArray]) -> FloatArray:
        """Return the value of every key, distinct and increasing; `compute` returns those of places not cached."""
        values = np.empty(keys.size)
        at, known = _locate(self._keys, keys)
        values[known] = self._values[at[known]]
        if not known.all():
            values[~known] = compute(np.flatnonzero(~known))
            if self._keys.size + (~known).sum() > _MOST_REMEMBERED:
                self._keys, self._values, at = self._keys[:0], self._values[:0], np.zeros_like(at)
            self._keys = np.insert(self._keys, at[~known], keys[~known])
            self._values = np.insert(self._values, at[~known], values[~known])
        return values


def _ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the whole numbers of ranges, one range after the other."""
    ends = np.append(0, lengths.cumsum())
    return np.asarray(np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths))


def _locate(keys: IntArray, wanted: IntArray) -> tuple[IntArray, BoolArray]:
    """Find the place of each wanted key among increasing keys, or its insertion place, and a mask of those found."""
    places = np.searchsorted(keys, wanted)
    known = np.zeros(wanted.size, dtype=np.bool_)
    inside = places < keys.size
    known[inside] = keys[places[inside]] == wanted[inside]
    return places, known


def _whole(name: str, numbers: ArrayLike, most: int) -> IntArray:
    """Check that numbers are integers from 0 to `most`, and return them as such."""
    given = np.asarray(numbers)
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{name} are {given!r}; choose integers of at least 0.")
    if given.size and (given.min() < 0 or given.max() > most):
        raise ValueError(
            f"{name} range from {given.min()} to {given.max()}; choose integers of at least 0; the most is {most}."
        )
    return given.astype(np.int64)


def _check_totals(steps: IntArray) -> None:
    if steps.max(initial=0) > MOST_STEPS:
        raise ValueError(f"an account would hold {steps.max()} steps of one event; the most is {MOST_STEPS}.")
