"""How many records there are: all of them, by category, or by intervals of a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.conditions import Level, Rows, as_levels
from fedprivacy.questions.errors import as_bounds, as_whole, check_name, settle
from fedprivacy.questions.figures import Figure, Noisy
from fedprivacy.questions.lattice import STEPS, interval
from fedprivacy.questions.question import Question, Totals

MOST_BINS = 4096
OTHER = "other"
"""Records whose cell says something, and none of the levels."""


@dataclass(frozen=True, kw_only=True)
class Count(Question):
    """How many records there are. A record's vector is a one."""

    kind = "count"

    reads = ()
    width = 1
    squared_sensitivity = STEPS**2
    per_count = 1.0 / STEPS
    words = "number of records"

    def summed(self, rows: Rows) -> Totals:
        """How many there are."""
        return np.array([STEPS * len(rows)], dtype=np.int64)

    def records(self, noisy: Noisy) -> float:
        """The noisy count."""
        return float(noisy.totals[0]) / STEPS

    def figures(self, noisy: Noisy) -> list[Figure]:
        """The noisy count."""
        return [Figure.of("count", self.records(noisy), self.per_count * noisy.deviation)]


class Bins(Question):
    """Records by bin. A record's vector is a one in its bin, and zeros; one whose cell is empty is in no bin."""

    squared_sensitivity = STEPS**2
    per_count = 1.0 / STEPS

    @property
    def bins(self) -> Iterator[str]:
        """The bins' names."""
        raise NotImplementedError

    def records(self, noisy: Noisy) -> float:
        """All bins together."""
        return float(noisy.totals.sum()) / STEPS

    def figures(self, noisy: Noisy) -> list[Figure]:
        """A noisy count for each bin."""
        counts = zip(self.bins, (noisy.totals / STEPS).tolist(), strict=True)
        return [Figure.of(name, count, self.per_count * noisy.deviation) for name, count in counts]


def _counted(places: Totals, width: int) -> Totals:
    return STEPS * np.bincount(places, minlength=width).astype(np.int64)


def counted_with_others(codes: Totals, empty: NDArray[np.bool_], width: int) -> Totals:
    """Records in each place, and in the last one those that are in none (-1) and whose cell is not empty."""
    counts = _counted(codes[codes >= 0], width)
    counts[-1] = STEPS * np.count_nonzero((codes < 0) & ~empty)
    return counts


def standing_out(width: int) -> float:
    """Deviations of the noise that the largest of so many counts exceeds by chance in less than one of 1000 answers.

    Each of them does with a probability of at most exp(-t^2 / 2) / 2.
    """
    return math.sqrt(2.0 * math.log(1000.0 * width))


def _told_apart(edges: Sequence[float]) -> list[str]:
    """Numbers as texts, in as many digits as it takes, and no less than six."""
    texts: list[str] = []
    for digits in range(6, 18):
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(texts)) == len(edges):
            break
    return texts


@dataclass(frozen=True, kw_only=True)
class Categories(Bins):
    """How many records there are of each public level of a column, and of none of them."""

    kind = "categories"
    column: str
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("column", self.column)
        settle(self, levels=as_levels(self.column, self.levels))

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def width(self) -> int:
        """The levels, and none of them."""
        return len(self.levels) + 1

    @property
    def words(self) -> str:
        """For people."""
        return f"records by {self.column}"

    @property
    def bins(self) -> Iterator[str]:
        """The levels, and none of them."""
        yield from map(str, self.levels)
        yield OTHER

    def summed(self, rows: Rows) -> Totals:
        """Records of each level, and in the last place of none of them."""
        return counted_with_others(rows.codes(self.column, self.levels), rows.empty(self.column), self.width)


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(Categories):
    """The levels of a declared domain that most records have: report noisy max, with the noisy counts.

    Attributes:
        most: how many to report; none whose count the noise may have made.
    """

    kind = "heavy-hitters"
    most: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, most=as_whole("most", self.most, 1, 1000))

    @property
    def words(self) -> str:
        """For people."""
        return f"most frequent {self.column}"

    def figures(self, noisy: Noisy) -> list[Figure]:
        """The largest noisy counts, the largest first, as far as they stand out of the noise of all of them."""
        threshold = self.per_count * noisy.deviation * standing_out(self.width)
        found = sorted(super().figures(noisy)[:-1], key=lambda figure: -(figure.value or 0.0))
        return [figure for figure in found[: self.most] if (figure.value or 0.0) > threshold]


@dataclass(frozen=True, kw_only=True)
class Histogram(Bins):
    """How many records there are in each of equally wide intervals of a number; those beyond the bounds in the outer.

    Attributes:
        low, high: where the first interval begins and the last one ends.
        intervals: how many there are.
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
        settle(self, low=low, high=high, intervals=as_whole("intervals", self.intervals, 1, MOST_BINS))

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def width(self) -> int:
        """The intervals."""
        return self.intervals

    @property
    def words(self) -> str:
        """For people."""
        return f"distribution of {self.column}"

    @property
    def bins(self) -> Iterator[str]:
        """The intervals' bounds."""
        edges = np.linspace(self.low, self.high, self.intervals + 1).tolist()
        return (f"{low} to {high}" for low, high in pairwise(_told_apart(edges)))

    def summed(self, rows: Rows) -> Totals:
        """Records in each interval; those whose cell is no number are in none."""
        return _counted(interval(rows.numbers(self.column), self.low, self.high, self.intervals), self.intervals)
