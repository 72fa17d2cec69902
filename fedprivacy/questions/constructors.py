"""Questions as people write them: `fp.ask.mean("age", 0, 120)` in Python, `mean age 0 120` in a text.

Grammar of typed questions: `mean age 0 120 where sex=f by ward=a,b`; several are separated by semicolons.

| question | what follows |
|---|---|
| `count` | |
| `rows` | how many of each person are counted, at most |
| `categories` | column, levels |
| `heavy-hitters` | column, how many to report, levels |
| `histogram` | column, low, high, and maybe how many intervals |
| `sum`, `mean`, `variance` | column, low, high |
| `spread`, `covariance` | column, low, high; as often as one likes |
| `median` | column, low, high |
| `quantiles` | column, low, high, probabilities |
| `table` | column=low:high for a number, column=level,level for a category; as often as one likes |

After `where` come conditions, column=level,level or column=least:below; after `by` one column=level,level. A name with
a space is put in quotes, as a shell's.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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


_CLAUSES = ("where", "by")


def parse(text: str) -> tuple[Question, ...]:
    """Parse the questions of a text.

    >>> [question.words for question in parse("count; mean age 0 120 where sex=f")]
    ['number of records', 'mean of age']

    Raises:
        QuestionError: a part cannot be read; the error names it.
    """
    found = [question for part in _parts(text) for question in _parse_one(part)]
    if not found:
        raise QuestionError("no question is asked; write one, for example: count")
    return tuple(found)


def _parts(text: str) -> list[list[str]]:
    """Return the words of each question."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
    lexer.whitespace_split, lexer.commenters = True, ""
    parts: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word and not word.strip(";"):
                parts.append([])
            else:
                parts[-1].append(word)
    except ValueError as error:
        raise QuestionError(f"the questions cannot be read ({error}); close every quote.") from error
    return [part for part in parts if part]


def _parse_one(words: list[str]) -> Sequence[Question]:
    kind, *rest = words
    if kind not in _FORMS:
        raise QuestionError(f"'{kind}' is no question; ask one of {', '.join(_FORMS)}.")
    given, options = _clauses(rest)
    try:
        made = _FORMS[kind](given, options)
    except (ValueError, IndexError, TypeError) as error:
        if isinstance(error, QuestionError):
            raise
        raise QuestionError(f"'{shlex.join(words)}' cannot be read ({error}); see `fedprivacy ask --help`.") from error
    return made if isinstance(made, tuple) else (made,)


def _clauses(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into those before any clause, and each clause's parsed value."""
    parts: dict[str, list[str]] = {"": []}
    clause = ""
    for word in words:
        if word not in _CLAUSES:
            parts[clause].append(word)
        elif word in parts:
            raise QuestionError(f"'{word}' is there twice; say all of it after one.")
        else:
            clause = word
            parts[clause] = []
    options = {clause: _columns_named(said) for clause, said in parts.items() if clause}
    for clause, said in options.items():
        if not said:
            raise QuestionError(f"nothing follows '{clause}'; write column=level,level after it.")
    if any(isinstance(levels, tuple) for levels in options.get("by", {}).values()):
        raise QuestionError("by names two bounds; write by column=level,level.")
    return parts[""], options


def _columns_named(words: Sequence[str]) -> dict[str, Any]:
    """Parse words about columns, each of which is named once."""
    return _each_once([_parse_column(word) for word in words])


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise QuestionError(
            f"a column is named twice among {', '.join(column for column, _ in pairs)}; name each once."
        )
    return found


def _parse_column(word: str) -> tuple[str, Any]:
    """Parse column=level,level or column=least:below."""
    column, equals, value = word.partition("=")
    if not equals:
        raise QuestionError(f"'{word}' names no value; write column=level,level or column=least:below.")
    least, colon, below = value.partition(":")
    if not colon:
        return column, list[Level](value.split(","))
    try:
        return column, (float(least), float(below))
    except ValueError as error:
        raise QuestionError(f"'{word}' has no two numbers around its colon.") from error


def _bounds(words: list[str]) -> dict[str, tuple[float, float]]:
    if not words or len(words) % 3:
        raise QuestionError(f"'{shlex.join(words)}' is no list of columns, each with low and high.")
    return _each_once([(words[n], (float(words[n + 1]), float(words[n + 2]))) for n in range(0, len(words), 3)])


def _numbers(words: Sequence[str]) -> tuple[str, float, float]:
    if len(words) != 3:
        raise QuestionError(f"'{shlex.join(words)}' is no column with its low and high.")
    return words[0], float(words[1]), float(words[2])


def _bare(words: list[str], options: dict[str, Any]) -> Question:
    if words:
        raise QuestionError(f"count is followed by {shlex.join(words)}; a condition comes after 'where'.")
    return Questions.count(**options)


_FORMS: dict[str, Callable[[list[str], dict[str, Any]], Question | tuple[Question, ...]]] = {
    "count": _bare,
    "rows": lambda w, o: Questions.rows(*map(int, w), **o),
    "categories": lambda w, o: Questions.categories(w[0], w[1:], **o),
    "heavy-hitters": lambda w, o: Questions.heavy_hitters(w[0], w[2:], int(w[1]), **o),
    "histogram": lambda w, o: Questions.histogram(*_numbers(w[:3]), *map(int, w[3:]), **o),
    "sum": lambda w, o: Questions.sum(*_numbers(w), **o),
    "mean": lambda w, o: Questions.mean(*_numbers(w), **o),
    "variance": lambda w, o: Questions.variance(*_numbers(w), **o),
    "spread": lambda w, o: Questions.mean_and_scale(_bounds(w), **o),
    "covariance": lambda w, o: Questions.covariance(_bounds(w), **o),
    "median": lambda w, o: Questions.median(*_numbers(w), **o),
    "quantiles": lambda w, o: Questions.quantiles(*_numbers(w[:3]), tuple(map(float, w[3:])), **o),
    "table": lambda w, o: Questions.table_one(_columns_named(w), **o),
}
