"""Questions as people write them in Python: `fp.ask.mean("age", 0, 120)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from fedprivacy.questions.arguments import QuestionError, as_tuple
from fedprivacy.questions.conditions import By, Level, Where, conditions, grouping
from fedprivacy.questions.counts import Categories, Count, HeavyHitters, Histogram, RowCount
from fedprivacy.questions.moments import Bounded, Covariance, Mean, Spread, Sum
from fedprivacy.questions.quantiles import Quantiles
from fedprivacy.questions.question import Question

T = TypeVar("T")

Bounds = Mapping[str, tuple[float, float]]
"""Columns of numbers, each with its public bounds."""


class Questions:
    """Constructors of questions. Bounds and levels are public: declared, and never looked up in the records.

    Every question takes `where`, conditions by column that a record must meet (a level, a list of levels, or a tuple
    (at least, below) of numbers), and `by`, one column whose levels are answered separately.
    """

    @staticmethod
    def count(*, where: Where = None, by: By = None) -> Count:
        """Ask for the number of records.

        >>> import fedprivacy as fp
        >>> fp.ask.count(where={"sex": "f", "age": (40, 60)}).words
        'number of records'
        """
        return Count(where=conditions(where), by=grouping(by))

    @staticmethod
    def rows(most: int, *, where: Where = None, by: By = None) -> RowCount:
        """Ask for the number of rows, of each person at most `most`: of visits, where a record is a patient.

        >>> import fedprivacy as fp
        >>> fp.ask.rows(8, where={"ward": "icu"}).sentence
        'number of rows, at most 8 of each record, where ward is icu'
        """
        return RowCount(most=most, where=conditions(where), by=grouping(by))

    @staticmethod
    def categories(column: str, levels: Sequence[Level], *, where: Where = None, by: By = None) -> Categories:
        """Ask for the number of records of each level, and of none of them.

        >>> import fedprivacy as fp
        >>> list(fp.ask.categories("sex", ["f", "m"]).bins)
        ['f', 'm', 'other']
        """
        return Categories(column=column, levels=as_tuple("levels", levels), where=conditions(where), by=grouping(by))

    @staticmethod
    def heavy_hitters(
        column: str, levels: Sequence[Level], most: int = 10, *, where: Where = None, by: By = None
    ) -> HeavyHitters:
        """Ask for the most frequent of some levels, as far as they stand out of the noise.

        >>> import fedprivacy as fp
        >>> fp.ask.heavy_hitters("ward", ["icu", "surgery", "emergency"], most=2).words
        'most frequent ward'
        """
        named = as_tuple("levels", levels)
        return HeavyHitters(column=column, levels=named, most=most, where=conditions(where), by=grouping(by))

    @staticmethod
    def histogram(
        column: str, low: float, high: float, intervals: int = 10, *, where: Where = None, by: By = None
    ) -> Histogram:
        """Ask for the number of records in each of equally wide intervals.

        A number on an edge counts in the interval that begins there, and one on `high` in the last interval.

        >>> import fedprivacy as fp
        >>> list(fp.ask.histogram("age", 0, 120, intervals=4).bins)
        ['0 to 30', '30 to 60', '60 to 90', '90 to 120']
        """
        return Histogram(
            column=column, low=low, high=high, intervals=intervals, where=conditions(where), by=grouping(by)
        )

    @staticmethod
    def sum(column: str, low: float, high: float, *, where: Where = None, by: By = None) -> Sum:
        """Ask for the sum of a bounded number, and the number of records.

        >>> import fedprivacy as fp
        >>> fp.ask.sum("days", 0, 60, where={"ward": "icu"}).words
        'sum of days'
        """
        return Sum(of=(Bounded(column, low, high),), where=conditions(where), by=grouping(by))

    @staticmethod
    def mean(column: str, low: float, high: float, *, where: Where = None, by: By = None) -> Mean:
        """Ask for the mean of a bounded number, and the number of records.

        >>> import fedprivacy as fp
        >>> fp.ask.mean("age", 0, 120, by={"sex": ["f", "m"]}).sentence
        'mean of age, by sex (f, m)'
        """
        return Mean(of=(Bounded(column, low, high),), where=conditions(where), by=grouping(by))

    @staticmethod
    def variance(column: str, low: float, high: float, *, where: Where = None, by: By = None) -> Spread:
        """Ask for mean and standard deviation of a bounded number, and the number of records.

        >>> import fedprivacy as fp
        >>> fp.ask.variance("age", 0, 120).words
        'mean and standard deviation of age'
        """
        return Spread(of=(Bounded(column, low, high),), where=conditions(where), by=grouping(by))

    @staticmethod
    def mean_and_scale(bounds: Bounds, *, where: Where = None, by: By = None) -> Spread:
        """Ask for means and standard deviations of several bounded numbers, over records in which all are numbers.

        >>> import fedprivacy as fp
        >>> fp.ask.mean_and_scale({"age": (0, 120), "creatinine": (0, 500)}).words
        'mean and standard deviation of age, creatinine'
        """
        return Spread(of=_columns_with_bounds(bounds), where=conditions(where), by=grouping(by))

    @staticmethod
    def covariance(bounds: Bounds, *, where: Where = None, by: By = None) -> Covariance:
        """Ask for means, covariances and correlations of several bounded numbers.

        >>> import fedprivacy as fp
        >>> fp.ask.covariance({"age": (0, 120), "creatinine": (0, 500)}).words
        'covariance of age, creatinine'
        """
        return Covariance(of=_columns_with_bounds(bounds), where=conditions(where), by=grouping(by))

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
        """Ask for quantiles of a bounded number, each with an interval.

        >>> import fedprivacy as fp
        >>> fp.ask.quantiles("age", 0, 120, at=[0.1, 0.9]).words
        'quantile 0.1, quantile 0.9 of age, to within 0.234'
        """
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
        """Ask for the median of a bounded number, with an interval.

        A number of points for which each whole number has an interval of its own suits whole numbers.

        >>> import fedprivacy as fp
        >>> fp.ask.median("age", 0, 120, points=120).words
        'median of age, to within 1'
        """
        return Questions.quantiles(column, low, high, (0.5,), points, where=where, by=by)

    @staticmethod
    def table_one(
        variables: Mapping[str, tuple[float, float] | Sequence[Level]], *, where: Where = None, by: By = None
    ) -> tuple[Question, ...]:
        """Ask for a whole Table 1: mean and standard deviation of each number, and counts of each category, by group.

        All variables have equal shares of the privacy loss; groups need no shares, because a record is in one of them.

        >>> import fedprivacy as fp
        >>> table = fp.ask.table_one({"age": (0, 120), "sex": ["f", "m"]}, by={"arm": ["a", "b"]})
        >>> [question.words for question in table]
        ['mean and standard deviation of age', 'records by sex']
        """
        return tuple(
            Spread(of=_columns_with_bounds({column: each}), where=conditions(where), by=grouping(by))
            if isinstance(each, tuple)
            else Categories(column=column, levels=as_tuple(column, each), where=conditions(where), by=grouping(by))
            for column, each in _by_column("variables", variables).items()
        )


def _columns_with_bounds(bounds: Bounds) -> tuple[Bounded, ...]:
    """Check columns with their bounds."""
    for column, pair in _by_column("bounds", bounds).items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise QuestionError(f"the bounds of {column} are a {type(pair).__name__}; give (low, high).")
    return tuple(Bounded(column, low, high) for column, (low, high) in bounds.items())


def _by_column(argument: str, given: Mapping[str, T]) -> Mapping[str, T]:
    """Check that an argument is a mapping by column and not empty."""
    if not isinstance(given, Mapping) or not given:
        named = "empty" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise QuestionError(f"{argument} is {named}; give a dict with a column at least.")
    return given
