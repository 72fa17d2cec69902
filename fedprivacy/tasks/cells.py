"""Cells of a table, read as a text, a number or a level.

Formal guarantee: the value read from a cell depends on the cell and on public arguments alone, never on another cell,
and no cell makes reading fail: an unreadable cell counts as empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Read = TypeVar("Read")

Cell = Any
"""Content of a table's cell: text in CSV, possibly a number in Parquet; None or "": nothing."""


_PLAIN = (str, int)
"""Types whose equal cells have the same meaning; derived types are not included."""


def one_by_one(places: Iterable[Any], read: Callable[[Any], Cell]) -> list[Cell]:
    """Read the cells at some places; None where reading one of them fails."""

    def cell(place: Any) -> Cell:
        try:
            return read(place)
        except Exception:
            return None

    return [cell(place) for place in places]


def read_each(cells: Collection[Cell], read: Callable[[Cell], Read]) -> list[Read]:
    """Read each cell; a plain text that many cells have is read once.

    Only plain text is shared: 1 and True are equal, but are read differently.
    """
    known = {cell: read(cell) for cell in {cell for cell in cells if type(cell) is str}}
    return [known[cell] if type(cell) is str else read(cell) for cell in cells]


def text(cell: Cell) -> str:
    """Return the text of a cell, stripped; "" if it is empty or has no text."""
    try:
        return "" if cell is None else str.strip(str(cell))
    except Exception:
        return ""


def is_empty(cell: Cell) -> bool:
    """Return whether a cell holds nothing: None, or a blank text."""
    return cell is None or (isinstance(cell, str) and not text(cell))


def says_nothing(cell: Cell) -> bool:
    """Return whether a cell has no text, or is NaN."""
    return not text(cell) or (issubclass(type(cell), float | np.floating) and math.isnan(cell))


def number(cell: Cell) -> float:
    """Return the number in a cell, text or not; maybe infinite. NaN: no number, or one too large for a float."""
    try:
        return float(cell)
    except Exception:
        return math.nan


class Levels:
    """Public levels, with the lookup of a cell: the first level that is the same text, stripped, or the same number.

    >>> Levels(["f", "m"]).place(" m "), Levels([0, 1]).place("1.0"), Levels([0, 1]).place("")
    (1, 1, None)
    """

    def __init__(self, levels: Sequence[object]) -> None:
        self._texts: dict[str, int] = {}
        self._numbers: dict[float, int] = {}
        for place, level in enumerate(levels):
            self._texts.setdefault(text(level), place)
            for value in (number(level), number(text(level))):  # these differ for a float32
                if not math.isnan(value):
                    self._numbers.setdefault(value, place)

    def place(self, cell: Cell) -> int | None:
        """Return the place of a cell among the levels; None: it is none of them."""
        words = text(cell)
        if not words:
            return None
        found = (self._texts.get(words), self._numbers.get(number(cell)))
        return min((place for place in found if place is not None), default=None)

    def code(self, cell: Cell) -> int:
        """Return the place of a cell among the levels; -1: it is none of them."""
        place = self.place(cell)
        return -1 if place is None else place

    def codes(self, cells: Collection[Cell]) -> NDArray[np.int64]:
        """Return the code of each cell, shape [cells]."""
        return np.array(read_each(cells, self.code), np.int64)

    def codes_of_numbers(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the code of each number. Equal numbers have one text, so texts add nothing; NaN has a text."""
        nowhere = np.where(np.isnan(values), self.code(math.nan), -1)
        if not self._numbers:
            return nowhere
        numbers, places = (np.array(column) for column in zip(*sorted(self._numbers.items()), strict=True))
        nearest = np.searchsorted(numbers, values).clip(max=len(numbers) - 1)
        return np.where(numbers[nearest] == values, places[nearest], nowhere)


class Beginnings:
    """Public prefixes and public whole texts, with the lookup of a text.

    Whole texts come first: a text that is one of them does not count under a prefix.

    >>> known = Beginnings(["A0", "B"], ["A0"])
    >>> [known.code(words) for words in ("A01", "B", "A0", "C")]
    [0, 1, 2, -1]

    Args:
        prefixes: prefixes, none of which begins with another.
        whole: whole texts; their places come after those of the prefixes.
    """

    def __init__(self, prefixes: Sequence[str], whole: Sequence[str] = ()) -> None:
        self._prefixes = {prefix: place for place, prefix in enumerate(prefixes)}
        self._whole = {words: len(prefixes) + place for place, words in enumerate(whole)}
        self._lengths = sorted(set(map(len, prefixes)))

    def code(self, words: str) -> int:
        """Return the place of a text among them; -1: it is none of them."""
        if words in self._whole:
            return self._whole[words]
        found = (self._prefixes.get(words[:length]) for length in self._lengths)
        return next((place for place in found if place is not None), -1)
