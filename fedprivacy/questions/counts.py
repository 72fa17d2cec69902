"""Counts of records: all of them, by category, or by intervals of a number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedprivacy.questions.arguments import as_bounds, as_whole, check_name, settle
from fedprivacy.questions.conditions import ChosenRecords, Level, as_levels
from fedprivacy.questions.figures import Estimate, Noisy
from fedprivacy.questions.lattice import STEPS, Totals, edges, interval
from fedprivacy.questions.question import Question
from fedprivacy.values.unit import MOST_ROWS
from fedprivacy.values.wording import plural

_MOST_BINS = 4096
OTHER = "other"
"""Name of the bin of records whose cell is not empty and none of the levels."""


@dataclass(frozen=True, kw_only=True)
class Count(Question):
    """Number of records. A record's vector is a one."""

    kind = "count"

    reads = ()
    width = 1
    squared_sensitivity = STEPS**2
    per_count = 1.0 / STEPS

    def words_of(self, unit: str) -> str:
        return f"number of {plural(unit)}"

    def sum_records(self, rows: ChosenRecords) -> Totals:
        """Return the number of records, in steps."""
        return np.array([STEPS * len(rows)], dtype=np.int64)

    def records(self, noisy: Noisy) -> float:
        return float(noisy.totals[0]) / STEPS

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return the noisy count."""
        return [Estimate.with_interval("count", self.records(noisy), self.per_count * noisy.deviation)]


@dataclass(frozen=True, kw_only=True)
class RowCount(Question):
    """Number of rows, of each record at most so many. A record's vector is the number of its rows.

    Attributes:
        most: rows of one record that are counted, at most; of a table without persons each record has one.
    """

    kind = "rows"
    most: int

    reads = ()
    width = 1
    per_count = 1.0 / STEPS

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, most=as_whole("most", self.most, 1, MOST_ROWS))

    @property
    def squared_sensitivity(self) -> int:
        """Squared norm of a record with the most rows."""
        return (STEPS * self.most) ** 2

    def words_of(self, unit: str) -> str:
        return f"number of rows, at most {self.most} of each {unit}"

    def sum_records(self, rows: ChosenRecords) -> Totals:
        """Return the number of rows, in steps."""
        return np.array([STEPS * int(np.minimum(rows.sizes, self.most).sum())], dtype=np.int64)

    def records(self, noisy: Noisy) -> float:
        """Return the fewest records that may have so many rows."""
        return float(noisy.totals[0]) / (STEPS * self.most)

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return the noisy number of rows."""
        return [Estimate.with_interval("rows", float(noisy.totals[0]) / STEPS, self.per_count * noisy.deviation)]


class Bins(Question):
    """Numbers of records by bin. A record's vector is a one in its bin, and zeros; an empty cell is in no bin."""

    squared_sensitivity = STEPS**2
    per_count = 1.0 / STEPS

    @property
    def bins(self) -> Iterator[str]:
        raise NotImplementedError

    def records(self, noisy: Noisy) -> float:
        return float(noisy.totals.sum()) / STEPS

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return a noisy count for each bin."""
        counts = zip(self.bins, (noisy.totals / STEPS).tolist(), strict=True)
        return [Estimate.with_interval(name, count, self.per_count * noisy.deviation) for name, count in counts]


def _bin_counts(places: Totals, width: int) -> Totals:
    return STEPS * np.bincount(places, minlength=width).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Categories(Bins):
    """Number of records of each public level of a column, and of none of them."""

    kind = "categories"
    column: str
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("column", self.column)
        settle(self, levels=as_levels(self.column, self.levels))

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def width(self) -> int:
        """Number of levels, plus one for none of them."""
        return len(self.levels) + 1

    def words_of(self, unit: str) -> str:
        return f"{plural(unit)} by {self.column}"

    @property
    def bins(self) -> Iterator[str]:
        """The levels, and "other" for none of them."""
        yield from map(str, self.levels)
        yield OTHER

    def sum_records(self, rows: ChosenRecords) -> Totals:
        """Count records of each level, and in the last place those whose cell is not empty and none of them."""
        codes = rows.codes(self.column, self.levels)
        counts = _bin_counts(codes[codes >= 0], self.width)
        counts[-1] = STEPS * np.count_nonzero((codes < 0) & ~rows.empty(self.column))
        return counts


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(Categories):
    """Most frequent levels of a declared domain: report noisy max, with the noisy counts.

    Attributes:
        most: maximum number of levels to report; counts that may be noise are left out.
    """

    kind = "heavy-hitters"
    most: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, most=as_whole("most", self.most, 1, 1000))

    def words_of(self, unit: str) -> str:
        return f"most frequent {self.column}"

    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Return the largest noisy counts, the largest first, as far as they stand out of the noise of all of them."""
        error = self.per_count * noisy.deviation
        counts = dict(zip(self.bins, (noisy.totals / STEPS).tolist()[:-1], strict=False))
        found = sorted(counts, key=lambda name: -counts[name])
        # A count exceeds t deviations of its noise with a probability of at most exp(-t^2 / 2) / 2: the largest of all
        # exceeds this by noise alone in less than 1 of 1000 answers.
        noise = error * math.sqrt(2.0 * math.log(1000.0 * self.width))
        told_above = max([noise, *(counts[name] for name in found[self.most :])])
        return [
            Estimate.with_interval(name, counts[name], error, (counts[name] - told_above) / error).clip(0.0, math.inf)
            for name in found[: self.most]
            if counts[name] > told_above
        ]


@dataclass(frozen=True, kw_only=True)
class Histogram(Bins):
    """Number of records in each of equally wide intervals; numbers beyond the bounds count in the outer intervals.

    A number on an edge counts in the interval that begins there, and one on `high` in the last interval.

    Attributes:
        low, high: beginning of the first interval and end of the last one.
        intervals: number of intervals.
    """

    kind = "histogram"
    column: str
    low: float
    high: float
    intervals: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("column", self.column)
        low, high = as_bounds(self.column, self.low, self.high)
        settle(self, low=low, high=high, intervals=as_whole("intervals", self.intervals, 1, _MOST_BINS))

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def width(self) -> int:
        return self.intervals

    def words_of(self, unit: str) -> str:
        return f"distribution of {self.column}"

    @property
    def bins(self) -> Iterator[str]:
        """Bounds of the intervals."""
        texts, _ = edges(self.low, self.high, self.intervals)
        return (f"{low} to {high}" for low, high in pairwise(texts))

    def sum_records(self, rows: ChosenRecords) -> Totals:
        """Count records in each interval; a cell that is no number is in none."""
        return _bin_counts(interval(rows.numbers(self.column), self.low, self.high, self.intervals), self.intervals)
