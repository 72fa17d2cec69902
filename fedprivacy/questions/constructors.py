"""Questions as people write them in Python: `fp.ask.mean("age", 0, 120)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from fedprivacy.questions.conditions import By, Level, Where, conditions, grouping
from fedprivacy.questions.counts import Categories, Count, HeavyHitters, Histogram
from fedprivacy.questions.errors import QuestionError, as_tuple
from fedprivacy.questions.moments import Bounded, Covariance, Mean, Spread, Sum
from fedprivacy.questions.prefixes import Prefixes
from fedprivacy.questions.quantiles import Quantiles
from fedprivacy.questions.question import Question

T = TypeVar("T")

Bounds = Mapping[str, tuple[float, float]]
"""Columns of numbers, each with its public bounds."""


class Questions:
    """What can be asked. Bounds and levels are public: declared, and never looked up in the records.

    Every question takes `where`, conditions by column that a record must meet (a level, a list of levels, or a tuple of
    a least number and one that it must be below), and `by`, one column with its levels, each answered for itself.
    """

    @staticmethod
    def count(*, where: Where = None, by: By = None) -> Count:
        """How many records there are.

        >>> import fedprivacy as fp
        >>> fp.ask.count(where={"sex": "f", "age": (40, 60)}).words
        'number of records'
        """
        return Count(where=conditions(where), by=grouping(by))

    @staticmethod
    def categories(column: str, levels: Sequence[Level], *, where: Where = None, by: By = None) -> Categories:
        """How many records there are of each level, and of none of them."""
        return Categories(column=column, levels=as_tuple("levels", levels), where=conditions(where), by=grouping(by))

    @staticmethod
    def heavy_hitters(
        column: str, levels: Sequence[Level], most: int = 10, *, where: Where = None, by: By = None
    ) -> HeavyHitters:
        """The most frequent of some levels, as far as they stand out of the noise."""
        named = as_tuple("levels", levels)
        return HeavyHitters(column=column, levels=named, most=most, where=conditions(where), by=grouping(by))

    @staticmethod
    def prefixes(
        column: str, prefixes: Sequence[str], whole: Sequence[str] = (), *, where: Where = None, by: By = None
    ) -> Prefixes:
        """How many texts begin with each prefix, how many are each whole text, and how many are neither.

        `fp.ask.frequent` asks this again and again, to find frequent texts that nobody has listed.

        >>> import fedprivacy as fp
        >>> list(fp.ask.prefixes("icd", ["A0", "B"], whole=["A0"]).bins)
        ['A0...', 'B...', 'A0', 'other']
        """
        return Prefixes(
            column=column,
            prefixes=as_tuple("prefixes", prefixes),
            whole=as_tuple("whole", whole),
            where=conditions(where),
            by=grouping(by),
        )

    @staticmethod
    def histogram(
        column: str, low: float, high: float, intervals: int = 10, *, where: Where = None, by: By = None
    ) -> Histogram:
        """How many records there are in each of equally wide intervals."""
        return Histogram(
            column=column, low=low, high=high, intervals=intervals, where=conditions(where), by=grouping(by)
        )

    @staticmethod
    def sum(column: str, low: float, high: float, *, where: Where = None, by: By = None) -> Sum:
        """The sum of a bounded number, and how many there are."""
        return Sum(of=(Bounded(column, low, high),), where=conditions(where), by=grouping(by))

    @staticmethod
    def mean(column: str, low: float, high: float, *, where: Where = None, by: By = None) -> Mean:
        """The mean of a bounded number, and how many there are."""
        return Mean(of=(Bounded(column, low, high),), where=conditions(where), by=grouping(by))

    @staticmethod
    def variance(column: str, low: float, high: float, *, where: Where = None, by: By = None) -> Spread:
        """Mean and standard deviation of a bounded number, and how many there are."""
        return Spread(of=(Bounded(column, low, high),), where=conditions(where), by=grouping(by))

    @staticmethod
    def mean_and_scale(bounds: Bounds, *, where: Where = None, by: By = None) -> Spread:
        """Means and standard deviations of several bounded numbers, of the records in which all are numbers."""
        return Spread(of=_bounded(bounds), where=conditions(where), by=grouping(by))

    @staticmethod
    def covariance(bounds: Bounds, *, where: Where = None, by: By = None) -> Covariance:
        """Means, covariances and correlations of several bounded numbers."""
        return Covariance(of=_bounded(bounds), where=conditions(where), by=grouping(by))

    @staticmethod
    def quantiles(
        column: str,
        low: float,
        high: float,
        at: Sequence[float] = (0.25, 0.5, 0.75),
        points: int = 512,
        *,
        where: Where = None,
        by: By = None,
    ) -> Quantiles:
        """Quantiles of a bounded number, each with an interval."""
        return Quantiles(
            column=column,
            low=low,
            high=high,
            at=as_tuple("at", at),
            points=points,
            where=conditions(where),
            by=grouping(by),
        )

    @staticmethod
    def median(
        column: str, low: float, high: float, points: int = 512, *, where: Where = None, by: By = None
    ) -> Quantiles:
        """The median of a bounded number, with an interval."""
        return Questions.quantiles(column, low, high, (0.5,), points, where=where, by=by)

    @staticmethod
    def table_one(
        variables: Mapping[str, tuple[float, float] | Sequence[Level]], *, where: Where = None, by: By = None
    ) -> tuple[Question, ...]:
        """A whole Table 1: mean and standard deviation of each number, and counts of each category, by group.

        The variables have equal shares of the privacy loss, whatever their kind; groups share nothing, because a record
        is in one of them.

        >>> import fedprivacy as fp
        >>> table = fp.ask.table_one({"age": (0, 120), "sex": ["f", "m"]}, by={"arm": ["a", "b"]})
        >>> [question.words for question in table]
        ['mean and standard deviation of age', 'records by sex']
        """
        return tuple(
            Spread(of=_bounded({column: each}), where=conditions(where), by=grouping(by))
            if isinstance(each, tuple)
            else Categories(column=column, levels=as_tuple(column, each), where=conditions(where), by=grouping(by))
            for column, each in _by_column("variables", variables).items()
        )


def _bounded(bounds: Bounds) -> tuple[Bounded, ...]:
    """Columns with their bounds, each checked."""
    for column, pair in _by_column("bounds", bounds).items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise QuestionError(f"the bounds of {column} are a {type(pair).__name__}; give (low, high).")
    return tuple(Bounded(column, low, high) for column, (low, high) in bounds.items())


def _by_column(argument: str, given: Mapping[str, T]) -> Mapping[str, T]:
    """What is given by column; refuse what is no mapping, or empty."""
    if not isinstance(given, Mapping) or not given:
        named = "empty" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise QuestionError(f"{argument} is {named}; give a dict with a column at least.")
    return given
