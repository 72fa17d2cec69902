"""A client's rows by column, of which questions are asked: each is a record, or some of them are a person."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.tasks.cells import Cell, Levels, Notation, TableError, check_levels_of_floats, one_by_one, read_each
from fedprivacy.values.cell_text import doubles, plain
from fedprivacy.values.unit import checked_persons, first_rows

SUMMARIES = ("mean", "first", "last", "least", "largest")
"""Ways in which the numbers in a person's rows become the person's one number."""

READINGS = 32
"""Maximum number of columns that a table keeps as codes or emptiness: a question reads one again for each group."""


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A client's rows by column: each row is one record, the unit of privacy, or with `persons` a person is.

    >>> import fedprivacy as fp
    >>> table = fp.Table({"age": [70, " 50 ", "?", None], "sex": ["f", "m", "f", "x"]})
    >>> len(table), table.numbers("age"), table.codes("sex", ["f", "m"])
    (4, array([70., 50., nan, nan]), array([ 0,  1,  0, -1]))

    Formal guarantee: the value read for a row depends on that row's cell and on public arguments (the column, the
    levels) alone, bit for bit; shapes and types depend on the number of rows and on public arguments. No cell
    changes how another is read, or makes reading fail: an unreadable cell is NaN, -1 or "". Which rows of a person
    count depends on that person's rows alone.

    The table can keep this promise only for the cells that it is given. `np.asarray([70, "?"])` has turned 70 into a
    text before it arrives here, because of another record: pass lists of mixed values as they are.

    Attributes:
        columns: cells of every row, by the column's name, which is public. An array of numbers stays one; the cells
            of any other column are kept as Python objects (`tolist()`), a masked one as None.
        persons: whose each row is, as for `Shard`; None: each row is a record by itself.
        most_rows: m, public: a person's first m rows count, the others do not. It is that of the task's unit.
        summaries: how a person's rows become one number, by column: one of `SUMMARIES`; public. Without an entry it is
            the mean of those rows that hold a number, and a person's category is that of the first row that has one
            ("last": of the last).
        person_of: number of each row's person, shape [rows]; -1 for a row that does not count; None without persons.
        decimal, fold_case, missing: how the cells are written, as for `load_table`; public.

    Raises:
        TableError: there is no column, they differ in length, a name is no text, a column is no list of cells,
            `persons` and `most_rows` do not belong together or persons are floating-point numbers, or a summary is of
            no column or unknown.
    """

    columns: Mapping[str, Sequence[Cell] | NDArray[Any]]
    decimal: str = "."
    fold_case: bool = False
    missing: Sequence[str] = ()
    persons: Sequence[Hashable] | None = None
    most_rows: int | None = None
    summaries: Mapping[str, str] = field(default_factory=dict)
    person_of: NDArray[np.int64] | None = field(init=False, default=None)
    _notation: Notation = field(init=False)
    _numbers: dict[str, NDArray[np.float64]] = field(init=False, default_factory=dict)
    _readings: dict[Hashable, NDArray[Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.columns:
            if not isinstance(name, str):
                raise TableError(f"a column's name is a {type(name).__name__}; give a text.")
        kept = {name: _frozen_column(name, column) for name, column in self.columns.items()}
        if not kept:
            raise TableError("the table has no column; give one at least.")
        if len({len(column) for column in kept.values()}) > 1:
            raise TableError("the table's columns differ in length; give each one cell for every record.")
        object.__setattr__(self, "columns", kept)
        object.__setattr__(self, "_notation", Notation(self.decimal, self.fold_case, self.missing))
        if self.persons is not None or self.most_rows is not None:
            object.__setattr__(self, "person_of", self._persons())
        for column, summary in self.summaries.items():
            if column not in kept or summary not in SUMMARIES or self.persons is None:
                raise TableError(
                    f"summaries say {summary!r} for '{column}'; give one of {', '.join(SUMMARIES)} for a column of a "
                    "table with persons."
                )

    def _persons(self) -> NDArray[np.int64]:
        """Return the number of each row's person; -1 where the person has m earlier rows."""
        try:
            numbers, most_rows = checked_persons(self.persons, self.most_rows, len(self), self._notation.text)
        except ValueError as error:
            raise TableError(str(error)) from None
        found = np.full(len(self), -1)
        for person, _, row in first_rows(numbers, most_rows)[1]:
            found[row] = person
        return found

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __repr__(self) -> str:
        """Name the columns, which are public, and neither cells nor the number of records."""
        return f"Table({', '.join(self.columns)})"

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return the number in every cell, shape [records], read-only; NaN where a cell holds no finite number.

        Numbers may be written as text; True is 1 and False 0.

        Raises:
            TableError: there is no such column.
        """
        if column not in self._numbers:
            values = _as_numbers(self._cells(column), self._notation.number)
            values[~np.isfinite(values) | self._missing_mask(column)] = np.nan
            values.flags.writeable = False
            self._numbers[column] = values
        return self._numbers[column]

    def codes(self, column: str, levels: Sequence[object]) -> NDArray[np.int64]:
        """Return the place of every cell among public levels, shape [records], read-only; -1 where it is none of them.

        A cell matches the level that is its text, without surrounding blanks; "7.0" is "7", as a float of that value
        is. A level that is given as a number also matches every cell with that number.

        Raises:
            TableError: there is no such column, a cell could match two of the levels, or an array of floats does not
                tell a level from its neighbours.
        """
        known = [(type(level), level) for level in levels]  # 1, 1.0 and True are equal, but not the same level
        if all(kind in (str, int, float, bool) for kind, _ in known):
            return self._keep_reading((column, *known), lambda: self._codes(column, levels))
        return self._codes(column, levels)

    def _codes(self, column: str, levels: Sequence[object]) -> NDArray[np.int64]:
        cells, known = self._cells(column), Levels(levels, self._notation)
        if not isinstance(cells, np.ndarray):
            return known.codes(cells)
        if cells.dtype.kind == "f":
            check_levels_of_floats(column, levels)
        return _codes_of_array(cells, known)

    def texts(self, column: str) -> list[str]:
        """Return the text of every cell, without surrounding blanks; "" where it is empty. One text for each record.

        It is a list, because in an array of texts the longest cell would determine the memory of all of them.

        Raises:
            TableError: there is no such column.
        """
        cells = self._cells(column)
        return [self._notation.text(cell) for cell in (cells.tolist() if isinstance(cells, np.ndarray) else cells)]

    def empty(self, column: str) -> NDArray[np.bool_]:
        """Return which cells hold nothing, shape [records], read-only: None, NaN, a blank text, or an object without
        text.

        Raises:
            TableError: there is no such column.
        """
        return self._keep_reading(column, lambda: self._empty(column))

    def _empty(self, column: str) -> NDArray[np.bool_]:
        cells = self._cells(column)
        if isinstance(cells, np.ndarray):
            return np.asarray(np.isnan(cells) | self._missing_mask(column))
        return np.array(read_each(cells, self._notation.is_empty), np.bool_)

    def _missing_mask(self, column: str) -> NDArray[np.bool_]:
        """Return which numbers of an array stand for nothing; of other cells that is seen when each is read."""
        cells = self._cells(column)
        if not isinstance(cells, np.ndarray):
            return np.zeros(len(self), np.bool_)
        marks = replace(self._notation, missing=())
        return _codes_of_array(cells, Levels(self._notation.missing, marks)) >= 0

    def _keep_reading(self, key: Hashable, read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return a column as it was read before, or read it now; the oldest column kept makes room."""
        if key not in self._readings:
            values = read()
            values.flags.writeable = False
            if len(self._readings) >= READINGS:
                del self._readings[next(iter(self._readings))]
            self._readings[key] = values
        return self._readings[key]

    def _cells(self, column: str) -> Sequence[Cell] | NDArray[Any]:
        if column not in self.columns:
            raise TableError(f"the table has no column '{column}'; it has {', '.join(self.columns)}.")
        return self.columns[column]


def without_records(table: Table) -> Table:
    """Return a table without its records: what fails on it fails by public arguments and types alone."""
    none = {name: column[:0] for name, column in table.columns.items()}
    return replace(table, columns=none, persons=None if table.persons is None else ())


def _frozen_column(name: str, column: Sequence[Cell] | NDArray[Any]) -> Sequence[Cell] | NDArray[Any]:
    """Freeze a column: an array of numbers is copied, any other column is kept cell by cell."""
    if not isinstance(column, np.ndarray):
        if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
            raise TableError(f"column '{name}' is a {type(column).__name__}; give a list or an array of its cells.")
        return tuple(column)
    if column.ndim != 1:
        raise TableError(f"column '{name}' has {column.ndim} dimensions; give an array of one, a cell for each record.")
    if column.dtype.kind in "biuf" and not isinstance(column, np.ma.MaskedArray):
        kept = doubles(column) if column.dtype.kind == "f" else np.array(column)
        kept.flags.writeable = False
        return kept
    if column.dtype.kind in "mM":
        return tuple(map(plain, column))
    try:
        return tuple(column.tolist())
    except Exception:  # a file may hold cells that are no text
        return tuple(one_by_one(range(len(column)), lambda place: column[place].item()))


def _codes_of_array(cells: NDArray[Any], known: Levels) -> NDArray[np.int64]:
    """Return the code of every cell of an array of numbers."""
    if cells.dtype.kind == "b":
        return np.where(cells, known.code(True), known.code(False))
    return known.codes_of_array(cells)


def _as_numbers(cells: Sequence[Cell] | NDArray[Any], number: Callable[[Cell], float]) -> NDArray[np.float64]:
    """Return the number in every cell, including infinite ones."""
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64)
    return np.fromiter(map(number, cells), np.float64, len(cells))
