"""Conditions that a record meets by itself, and groups that it belongs to: the records that a question is about."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.arguments import QuestionError, as_number, as_tuple, check_name, is_writable, settle
from fedprivacy.tasks.cells import Levels, TableError
from fedprivacy.tasks.columns import Table

Level = str | int | float | bool
"""Name of a category; public. A text matches a cell with this text, a number every cell with this number."""

MOST_LEVELS = 10_000
LONGEST_LEVEL = 256
MOST_CONDITIONS = 64

_NAMED = 4
"""Maximum number of levels that a description names."""


@dataclass(frozen=True, slots=True)
class Within:
    """Condition that a record's number in a column is at least `least`, and below `below`."""

    column: str
    least: float
    below: float

    def __post_init__(self) -> None:
        check_name("column", self.column)
        settle(self, least=as_number("least", self.least), below=as_number("below", self.below))
        if not self.least < self.below:
            raise QuestionError(
                f"a condition on {self.column} is from {self.least} to {self.below}; put the less first."
            )

    @property
    def words(self) -> str:
        """The condition for people."""
        least, below = (repr(end).removesuffix(".0") for end in (self.least, self.below))  # no digit is left out
        return f"{self.column} is from {least} to below {below}"

    def mask(self, table: Table) -> NDArray[np.bool_]:
        """Return which records meet the condition; a record whose cell is no number does not."""
        values = table.numbers(self.column)
        return np.asarray((values >= self.least) & (values < self.below))


@dataclass(frozen=True, slots=True)
class OneOf:
    """Condition that a record's cell in a column is one of the given levels."""

    column: str
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        check_name("column", self.column)
        settle(self, levels=as_levels(self.column, self.levels))

    @property
    def words(self) -> str:
        """The condition for people."""
        return f"{self.column} is {some_text(self.levels, ' or ')}"

    def mask(self, table: Table) -> NDArray[np.bool_]:
        """Return which records meet the condition."""
        return np.asarray(table.codes(self.column, self.levels) >= 0)

    def codes(self, table: Table) -> NDArray[np.int64]:
        """Return the place of each record's level; -1: none of them."""
        return table.codes(self.column, self.levels)


Condition = Within | OneOf


@dataclass(frozen=True, slots=True)
class ChosenRecords:
    """Some records of a table, by column; a record is a row."""

    table: Table
    rows: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Number of each record's rows, shape [records]."""
        return np.ones(len(self), np.intp)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return each record's number, NaN where it has none, shape [records]."""
        return self.table.numbers(column)[self.rows]

    def codes(self, column: str, levels: Sequence[Level]) -> NDArray[np.int64]:
        """Return places among the levels, -1 where a record has none of them, shape [records]."""
        return self.table.codes(column, levels)[self._text_rows(column)]

    def empty(self, column: str) -> NDArray[np.bool_]:
        """Return of which records a column holds nothing, shape [records]."""
        return self.table.empty(column)[self._text_rows(column)]

    def _text_rows(self, column: str) -> NDArray[np.intp]:
        """Return the row whose text stands for each record."""
        return self.rows


class ChosenPersons(ChosenRecords):
    """Some persons of a table, by column; of each of them some rows, at least one, in the table's order.

    Formal guarantee: what is returned for a person depends on that person's rows and on public arguments alone, bit for
    bit: sums run over one person's rows, in their order.
    """

    def __len__(self) -> int:
        return int(self._persons.max(initial=-1)) + 1

    @cached_property
    def _persons(self) -> NDArray[np.intp]:
        """Place of each row's person, shape [rows]."""
        assert self.table.person_of is not None
        return np.unique(self.table.person_of[self.rows], return_inverse=True)[1]

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Number of each person's rows, shape [persons]."""
        return np.bincount(self._persons)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return each person's number by the table's summary, NaN where no row holds one, shape [persons]."""
        values, which = self.table.numbers(column)[self.rows], self._persons
        known = ~np.isnan(values)
        values, of = values[known], which[known]
        found = np.full(len(self), np.nan)
        match self.table.summaries.get(column, "mean"):
            case "mean":
                counts = np.bincount(of, minlength=len(self))
                means = np.bincount(of, values / counts[of], len(self))  # divided first: no sum is too large
                found[counts > 0] = means[counts > 0]
            case "first":
                found[of[::-1]] = values[::-1]  # of several values for one place, the last one stays
            case "last":
                found[of] = values
            case "least":
                np.fmin.at(found, of, values)
            case _:
                np.fmax.at(found, of, values)
        return found

    def _text_rows(self, column: str) -> NDArray[np.intp]:
        """Return each person's first row that holds something, or the last one if the table says so."""
        which, told = self._persons, ~self.table.empty(column)[self.rows]
        backwards = slice(None) if self.table.summaries.get(column) == "last" else slice(None, None, -1)
        found = np.empty(len(self), np.intp)
        found[which] = self.rows
        found[which[told][backwards]] = self.rows[told][backwards]
        return found


def some_text(levels: Sequence[Level], separator: str) -> str:
    """Describe levels for people; of many, the first ones."""
    first = separator.join(map(str, levels[:_NAMED]))
    return first if len(levels) <= _NAMED else f"{first} and {len(levels) - _NAMED} more"


def groups_of(table: Table, where: Sequence[Condition], by: OneOf | None) -> Iterator[ChosenRecords]:
    """Yield the records that meet every condition, group by group; a record is in at most one group.

    A person meets the conditions if one row meets them all, and is then asked about by the rows that do. The person's
    group is that of the first of these rows that is in any, and rows of other groups are left out.
    """
    person_of = table.person_of
    records = ChosenRecords if person_of is None else ChosenPersons
    chosen = np.ones(len(table), dtype=np.bool_) if person_of is None else person_of >= 0
    for condition in where:
        chosen &= condition.mask(table)
    if by is None:
        yield records(table, np.flatnonzero(chosen))
        return
    codes = np.where(chosen, by.codes(table), -1)
    if person_of is not None:
        grouped = np.flatnonzero(codes >= 0)[::-1]
        group = np.full(len(table), -1)
        group[person_of[grouped]] = codes[grouped]  # of several values for one place, the last one stays
        codes = np.where(codes == group[person_of], codes, -1)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(by.levels) + 1))
    for first, after in pairwise(ends):
        yield records(table, order[first:after])


def as_levels(column: str, levels: object) -> tuple[Level, ...]:
    """Return levels in their canonical form; refuse a value that is no level, or a repeated one.

    Raises:
        QuestionError: a value is no level, or is repeated; the error names it.
    """
    given = as_tuple(f"levels of {column}", levels)
    if not 1 <= len(given) <= MOST_LEVELS:
        raise QuestionError(f"{column} has {len(given)} levels; name 1 to {MOST_LEVELS}.")
    named = tuple(_as_level(column, level) for level in given)
    try:
        Levels(named)
    except TableError as error:
        raise QuestionError(f"two levels of {column} are the same: {error}") from error
    return named


def _as_level(column: str, level: object) -> Level:
    """Return a level in its canonical form: a text without surrounding blanks, also for True and False; a number.

    An empty cell matches no level: neither a blank text nor NaN can be a level.
    """
    plain = level.item() if isinstance(level, np.generic) else level
    if isinstance(plain, bool):
        return str(plain)
    if isinstance(plain, int | float):
        if not abs(plain) < (math.inf if isinstance(plain, float) else 10**LONGEST_LEVEL):
            raise QuestionError(f"a level of {column} is no finite number, or one of too many digits; give a text.")
        return int(plain) if plain == int(plain) and abs(plain) < 2**53 else plain
    if not isinstance(plain, str):
        raise QuestionError(f"a level of {column} is a {type(plain).__name__}; give texts or finite numbers.")
    text = plain.strip()
    if len(text) > LONGEST_LEVEL:
        raise QuestionError(f"a level of {column} has {len(text)} characters; {LONGEST_LEVEL} is the most.")
    if not text or not is_writable(text) or text.lower().lstrip("+-") == "nan":
        raise QuestionError(f"a level of {column} is {text!r}, which stands for nothing; give a text.")
    return text


def as_conditions(where: object) -> tuple[Condition, ...]:
    """Return conditions in canonical form and order, each once: all must be met, so that their order is irrelevant.

    Raises:
        QuestionError: one is no condition, or there are too many.
    """
    given = as_tuple("where", where)
    if len(given) > MOST_CONDITIONS:
        raise QuestionError(f"{len(given)} conditions are to be met; {MOST_CONDITIONS} is the most.")
    if not all(isinstance(condition, Condition) for condition in given):
        raise QuestionError("a condition is neither Within nor OneOf; give one of the two.")
    return tuple(sorted(set(map(_in_order, given)), key=repr))


def _in_order(condition: Condition) -> Condition:
    if isinstance(condition, Within):
        return condition
    return OneOf(condition.column, tuple(sorted(condition.levels, key=str)))


Where = Mapping[str, Level | Sequence[Level] | tuple[float, float]] | None
"""Conditions by column: a level, a list of levels, or (at least, below)."""

By = Mapping[str, Sequence[Level]] | None
"""One column with its levels."""


def conditions(where: Where) -> tuple[Condition, ...]:
    """Parse conditions as people write them.

    >>> conditions({"sex": "f", "age": (40, 60)})
    (OneOf(column='sex', levels=('f',)), Within(column='age', least=40.0, below=60.0))

    Raises:
        QuestionError: a condition has none of these forms.
    """
    if not isinstance(where, Mapping | None):
        raise QuestionError(f"where is a {type(where).__name__}; give conditions by column.")
    return tuple(_condition(column, value) for column, value in (where or {}).items())


def _condition(column: str, value: Any) -> Condition:
    match value.item() if isinstance(value, np.generic) else value:
        case (least, below) if isinstance(value, tuple):
            return Within(column, least, below)
        case str() | int() | float():
            return OneOf(column, (value,))
        case list():
            return OneOf(column, tuple(value))
    raise QuestionError(
        f"the condition on {column} is a {type(value).__name__}; give a level, a list of levels, or (at least, below)."
    )


def grouping(by: By) -> OneOf | None:
    """Parse groups as people write them: one column with its levels.

    Raises:
        QuestionError: there are several columns.
    """
    if by is None:
        return None
    if not isinstance(by, Mapping) or len(by) != 1:
        named = f"names {len(by)} columns" if isinstance(by, Mapping) else f"is a {type(by).__name__}"
        raise QuestionError(f"by {named}; name one column, with its levels.")
    ((column, levels),) = by.items()
    return OneOf(column, as_tuple(f"levels of {column}", levels))
