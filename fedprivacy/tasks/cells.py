"""Cells of a table, read as a text, a number or a level.

Formal guarantee: the value read from a cell depends on the cell and on public arguments alone, never on another cell,
and no cell makes reading fail: an unreadable cell counts as empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from numbers import Number
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedprivacy.values.cell_text import canonical, plain, text

Read = TypeVar("Read")


class TableError(ValueError):
    """A table does not exist, lacks a column or cannot be split as asked; the message contains no cell."""


Cell = Any
"""Content of a table's cell: text in CSV, possibly a number in Parquet; None or "": nothing."""


_LEAST_INEXACT = 2.0**53
"""Least whole number that a float64 does not tell from the next one."""

_TRUTH = {"True": 1.0, "False": 0.0}


def one_by_one(places: Iterable[Any], read: Callable[[Any], Cell]) -> list[Cell]:
    """Read the cells at some places; None where reading one of them fails."""

    def cell(place: Any) -> Cell:
        try:
            return read(place)
        except Exception:
            return None

    return [cell(place) for place in places]


def read_each(cells: Collection[Cell], read: Callable[[Cell], Read]) -> list[Read]:
    """Read each cell; a plain text or whole number that many cells have is read once.

    Nothing else is shared: 1, 1.0 and True are equal, but are read differently.
    """
    known = {cell: read(cell) for cell in {cell for cell in cells if type(cell) in (str, int)}}
    return [known[cell] if type(cell) in (str, int) else read(cell) for cell in cells]


def number(cell: Cell) -> float:
    """Return the number in a cell, text or not; maybe infinite. NaN: no number, or one too large for a float.

    True is 1 and False 0, as texts too. "1_0" is none: only Python's own programs write numbers so, and codes are
    written so, too.
    """
    try:
        value = plain(cell)
        words = canonical(str(value).strip())
        if words in _TRUTH or "_" in words:
            return _TRUTH.get(words, math.nan)
        return float(words if isinstance(value, str) else value)
    except Exception:
        return math.nan


@dataclass(frozen=True, slots=True)
class Notation:
    """Notation of the cells of a table; public, and the same for every row and every client.

    >>> hospital = Notation(decimal=",", fold_case=True, missing=("?", "NA"))
    >>> hospital.number("70,5"), hospital.text(" na "), hospital.is_empty("?")
    (70.5, '', True)

    Attributes:
        decimal: "." or ",", the sign before the decimals of a number that is written as text. A number with the other
            sign is none: it could be one of thousands.
        fold_case: whether "Yes" and "yes" are the same level.
        missing: texts of cells that count as empty, such as "?"; a blank cell always does.

    Raises:
        TableError: `decimal` is another sign, or `missing` is no list of texts.
    """

    decimal: str = "."
    fold_case: bool = False
    missing: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise TableError(f"decimal is {self.decimal!r}; give '.' or ','.")
        several = isinstance(self.missing, Iterable) and not isinstance(self.missing, str)
        if not several or not all(isinstance(mark, str) for mark in self.missing):
            raise TableError(f"missing is {self.missing!r}; give a list of texts, for example ('?', 'NA').")
        marks = (self.fold(canonical(mark.strip(), self.decimal)) for mark in self.missing)
        object.__setattr__(self, "missing", tuple(dict.fromkeys(mark for mark in marks if mark)))

    def fold(self, words: str) -> str:
        """Return a text as it is compared."""
        return str.casefold(words) if self.fold_case else words

    def text(self, cell: Cell) -> str:
        """Return the text of a cell, stripped and without a program's additions; "" if it is empty or has no text."""
        value = plain(cell)
        words = text(value)
        if isinstance(value, str):
            words = canonical(words, self.decimal)
        elif self.decimal == "," and isinstance(value, float | Decimal):
            words = words.replace(".", ",")
        return "" if self.missing and self.fold(words) in self.missing else words

    def is_empty(self, cell: Cell) -> bool:
        """Return whether a cell holds nothing: None, NaN, a blank text, one of `missing`, or an object without text."""
        return not self.text(cell)

    def number(self, cell: Cell) -> float:
        """Return the number in a cell, text or not; maybe infinite. NaN: no number, or one too large for a float."""
        if self.missing and not self.text(cell):
            return math.nan
        if self.decimal == "," and isinstance(plain(cell), str):
            words = canonical(text(cell), ",")
            return math.nan if "." in words else number(words.replace(",", "."))
        return number(cell)


def list_of(name: str, given: object) -> tuple[Any, ...]:
    """Return the texts or numbers of a list, in its order.

    Raises:
        TableError: it is no list, but a text, of which each letter would be one, or a set, which has no order.
    """
    if isinstance(given, str | bytes | AbstractSet | Mapping) or not isinstance(given, Iterable):
        raise TableError(f"{name} is {_level_text(given)}; give a list of texts or numbers.")
    return tuple(given)


PLAIN = Notation()
"""Notation of a table of which nothing is declared."""


class Levels:
    """Public levels, with the lookup of a cell.

    A cell matches the level that is its text, see `fedprivacy.values.cell_text`: "1" and "01" are two levels, "1.0" is
    "1". A level that was given as a number also matches every cell with that number.

    Args:
        levels: public levels.
        notation: how the cells are written.
        prefix: number of a cell's first characters that are compared; None: all.

    >>> Levels(["f", "m"]).place(" m "), Levels(["1", "01"]).place("01"), Levels([0, 1]).place("1.0")
    (1, 1, 1)

    Raises:
        TableError: a level is no text or number; or a cell could match two of the levels, or can match none of them.
    """

    def __init__(self, levels: Sequence[object], notation: Notation = PLAIN, prefix: int | None = None) -> None:
        self._notation, self._prefix = notation, prefix
        self._texts: dict[str, int] = {}
        self._numbers: dict[float, int] = {}
        self._values: list[float] = []
        for place, level in sorted(enumerate(levels), key=lambda pair: not _is_number(pair[1])):
            if (same := self.place(level)) is not None:
                raise TableError(f"levels {levels[same]!r} and {level!r} are the same; name each once.")
            words = self._words(level)
            if level is not None and not isinstance(level, str | Number | np.generic):
                raise TableError(
                    f"level {_level_text(level)} is of type {type(level).__name__}; give texts or numbers."
                )
            if not words or (_is_number(level) and math.isnan(number(level))):
                raise TableError(
                    f"level {_level_text(level)} stands for nothing, or is missing; give another, or none."
                )
            value = number(level) if _is_number(level) else notation.number(words)
            self._texts[words] = place
            self._values.append(value)
            if _is_number(level):
                self._numbers[value] = place

    def place(self, cell: Cell) -> int | None:
        """Return the place of a cell among the levels; None: it is none of them."""
        words = self._words(cell)
        if not words:
            return None
        found = self._texts.get(words)
        return self._numbers.get(self._notation.number(cell)) if found is None and self._numbers else found

    def _words(self, cell: Cell) -> str:
        return self._notation.fold(self._notation.text(cell)[: self._prefix])

    def code(self, cell: Cell) -> int:
        """Return the place of a cell among the levels; -1: it is none of them."""
        place = self.place(cell)
        return -1 if place is None else place

    def codes(self, cells: Collection[Cell]) -> NDArray[np.int64]:
        """Return the code of each cell, shape [cells]."""
        return np.array(read_each(cells, self.code), np.int64)

    def codes_of_array(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the code of each number, shape [cells]: float64 or whole numbers; of equal ones, one is read."""
        maybe = np.isin(numbers.astype(np.float64), self._values)
        different, which = np.unique(numbers[maybe], return_inverse=True)
        codes = np.full(len(numbers), -1)
        codes[maybe] = self.codes(different.tolist())[which]
        return codes


def check_levels_of_floats(column: str, levels: Iterable[object]) -> None:
    """Check the levels of a column whose type is floating point: a float has lost the end of a long whole number.

    Raises:
        TableError: a level is the text of a whole number that floats do not tell from its neighbours.
    """
    for level in levels:
        words = text(level).removeprefix("-") if isinstance(level, str) else ""
        if words.isdecimal() and float(words) >= _LEAST_INEXACT:
            raise TableError(
                f"column '{column}' is floating point, which does not tell level {level!r} from its neighbours; write "
                "the column as text or nullable whole numbers (pandas: Int64)."
            )


def _is_number(level: object) -> bool:
    """Return whether a level was given as a number; True and False are given as texts."""
    return isinstance(level, Number) and not isinstance(level, bool)


def _level_text(level: object) -> str:
    try:
        return repr(level)
    except Exception:  # a whole number of too many digits
        return f"of type {type(level).__name__}"
