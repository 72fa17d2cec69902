"""Readers of a table's columns: a cell becomes inputs of the model by public constants and by nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Protocol

from fedprivacy.tasks.cells import PLAIN, Cell, Levels, Notation, TableError, list_of
from fedprivacy.tasks.sheet import Fault, no_date, no_level, no_number
from fedprivacy.values.cell_text import canonical, plain, text

_DAYS = {"days": 1.0, "months": 365.2425 / 12, "years": 365.2425}
"""Days of each unit: those of a mean month and year."""

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_NAMES = "january|february|march|april|may|june|july|august|september|october|november|december"
"""English names; Python's own parser takes those of the process's language."""

_PARTS = {
    **{"Y": r"\d{4}", "y": r"\d{2}", "m": r"\d{1,2}", "d": r"\d{1,2}", "b": "|".join(_MONTHS), "B": _NAMES},
    **{"j": r"\d{1,3}", "G": r"\d{4}", "V": r"\d{1,2}", "u": r"[1-7]"},
}
_AROUND = {
    **{"H": r"(?:2[0-3]|[01]?\d)", "I": r"(?:1[0-2]|0?\d)", "M": r"[0-5]?\d", "S": r"(?:6[01]|[0-5]?\d)"},
    **{"f": r"\d{1,6}", "p": r"[ap]m", "z": r"(?:z|[+-]\d\d:?\d\d)", "%": "%"},
}
"""Signs of a form and the texts that they match: parts of the date, and what may be around it."""

_WHOLE = [set("GVu")] + [{year, *day} for year in "Yy" for day in ("md", "bd", "Bd", "j")]
"""Signs that together name one day."""

_ISO = re.compile(r"\d{4}-?(\d\d-?\d\d|W\d\d-?\d)")


class Feature(Protocol):
    """Reader of one column."""

    def inputs(self, cell: Cell, notation: Notation = PLAIN) -> list[float]:
        """Return the inputs that a cell becomes, as many for every cell; NaN where it cannot be read."""
        ...

    def fault(self, cell: Cell, notation: Notation) -> Fault:
        """Explain why a cell cannot be read."""
        ...


@dataclass(frozen=True)
class Number:
    """A column of numbers: (value - centre) / scale, both public constants, clipped at `limit` on both sides.

    >>> import fedprivacy as fp
    >>> fp.Number(centre=60, scale=15, limit=3).inputs("90")
    [2.0]
    >>> fp.Number(centre=60, scale=15, indicate_missing=True).inputs("")
    [0.0, 1.0]

    Attributes:
        centre, scale, limit: see above.
        missing: value of an empty cell, before scaling; None: the row cannot be read.
        indicate_missing: add an input that is 1 for an empty cell and 0 otherwise; an empty cell's value is then the
            centre, unless `missing` gives another.
    """

    centre: float = 0.0
    scale: float = 1.0
    limit: float = math.inf
    missing: float | None = None
    indicate_missing: bool = False

    def inputs(self, cell: Cell, notation: Notation = PLAIN) -> list[float]:
        """Return one number, or two; NaN where the cell holds none."""
        empty = notation.is_empty(cell)
        value = self._missing_number if empty else self._value(cell, notation)
        scaled = (value - self.centre) / self.scale
        number = min(max(scaled, -self.limit), self.limit) if math.isfinite(scaled) else math.nan
        return [number, float(empty)] if self.indicate_missing else [number]

    def fault(self, cell: Cell, notation: Notation) -> Fault:
        """Explain why a cell cannot be read."""
        return no_number(cell, notation)

    @property
    def _missing_number(self) -> float:
        if self.missing is None:
            return self.centre if self.indicate_missing else math.nan
        return self.missing

    def _value(self, cell: Cell, notation: Notation) -> float:
        return notation.number(cell)


@dataclass(frozen=True)
class Date(Number):
    """A column of dates: the time from a public day on, scaled as a number is. A time of day does not count.

    >>> import fedprivacy as fp
    >>> fp.Date(since="2000-01-01").inputs("2000-02-01"), fp.Date(since="1950-01-01", unit="years").inputs("1950-01-01")
    ([31.0], [0.0])

    Attributes:
        since: a day, as "2000-01-01".
        unit: "days", "months" or "years"; the latter two of mean length, 30.44 and 365.24 days.
        form: how a date is written, in the signs of Python's `strptime`, such as "%d.%m.%Y" or "%d%b%Y"; names of
            months are English on every host. None: as "2000-12-31", with or without a time of day.
        pivot: latest year that a two-digit year (%y) can mean: with 2025, "24" is 2024 and "26" is 1926.

    Raises:
        TableError: `since` is no day, there is no such unit, `form` does not name a whole date or names it twice, or
            `pivot` does not go with it.
    """

    since: str = field(kw_only=True)
    unit: str = field(default="days", kw_only=True)
    form: str | None = field(default=None, kw_only=True)
    pivot: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.unit not in _DAYS:
            raise TableError(f"unit is {self.unit!r}; give one of {', '.join(_DAYS)}.")
        if math.isnan(_day(self.since, _iso_day)):
            raise TableError(f"since is {self.since!r}; give a day, for example '2000-01-01'.")
        _ = self._read

    def fault(self, cell: Cell, notation: Notation) -> Fault:
        """Explain why a cell cannot be read."""
        return no_date(cell, self.form, notation)

    def _value(self, cell: Cell, notation: Notation) -> float:
        return (_day(cell, self._read) - _day(self.since, _iso_day)) / _DAYS[self.unit]

    @cached_property
    def _read(self) -> Callable[[str], date]:
        return _iso_day if self.form is None and self.pivot is None else _date_reader(self.form, self.pivot)


def _day(cell: Cell, read: Callable[[str], date]) -> float:
    """Return the number of a day; NaN: the cell is none. Midnight, which programs write for a day, may follow it."""
    value = plain(cell)
    if isinstance(value, date):
        return float(value.toordinal())
    for words in (text(value), canonical(text(value))):
        with suppress(Exception):
            return float(read(words).toordinal())
    return math.nan


@dataclass(frozen=True)
class Category:
    """A column of categories, one-hot in the order of the given levels.

    A cell is the level that is its text ("7.0" is "7"); a level that is given as a number also matches that number,
    however it is written.

    >>> import fedprivacy as fp
    >>> fp.Category(["f", "m"]).inputs("m"), fp.Category([1, 2]).inputs("1.0"), fp.Category(["10", "010"]).inputs("010")
    ([0.0, 1.0], [1.0, 0.0], [0.0, 1.0])
    >>> fp.Category(["E10", "E11"], prefix=3).inputs("E11.9")
    [0.0, 1.0]

    Attributes:
        levels: public levels.
        missing: level of an empty cell; None: the row cannot be read, as with a level that is not given.
        other: add an input that is 1 for a cell that is not empty and none of the levels, and 0 otherwise; without it
            the row cannot be read.
        prefix: number of a cell's first characters that are compared, as for codes of the ICD; None: all.
        indicate_missing: add an input that is 1 for an empty cell and 0 otherwise; an empty cell is then none of the
            levels, unless `missing` names one.

    Raises:
        TableError: a cell could match two levels, or can match none of one; or `missing` is no level.
    """

    levels: Sequence[object]
    missing: object = None
    prefix: int | None = None
    indicate_missing: bool = False
    other: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", list_of("levels", self.levels))
        if self.prefix is not None:
            self._check_prefix(self.prefix)
        _ = self._notations
        if self.missing is not None and self.place(self.missing) is None:
            raise TableError(f"missing is {self.missing!r}, which is none of the levels; name it among them.")

    def inputs(self, cell: Cell, notation: Notation = PLAIN) -> list[float]:
        """Return a 1 and zeros; NaN where the cell holds none of the levels."""
        empty = notation.is_empty(cell)
        found = self.place(self.missing if empty else cell, notation)
        others = [float(found is None and not empty)] * self.other
        indicated = [float(empty)] * self.indicate_missing
        if found is None and not (self.indicate_missing if empty else self.other):
            return [math.nan] * (len(self.levels) + self.other + self.indicate_missing)
        return [float(found == place) for place in range(len(self.levels))] + others + indicated

    def place(self, cell: Cell, notation: Notation = PLAIN) -> int | None:
        """Return the place of a cell among the levels; None: it is none of them."""
        if notation not in self._notations:
            self._notations[notation] = Levels(self.levels, notation, self.prefix)
        return self._notations[notation].place(cell)

    def fault(self, cell: Cell, notation: Notation) -> Fault:
        """Explain why a cell cannot be read."""
        return no_level(cell, self.levels, notation, self.prefix)

    @cached_property
    def _notations(self) -> dict[Notation, Levels]:
        return {PLAIN: Levels(self.levels, PLAIN, self.prefix)}

    def _check_prefix(self, prefix: int) -> None:
        if isinstance(prefix, bool) or not isinstance(prefix, int) or prefix < 1:
            raise TableError(f"prefix is {prefix!r}; give a number of characters.")
        for level in self.levels:
            if not isinstance(level, str) or len(level.strip()) > prefix:
                raise TableError(f"level {level!r} is no text of at most {prefix} characters, and prefix is {prefix}.")


def _iso_day(words: str) -> date:
    """Return the day of "2000-12-31", with or without a time. Raises ValueError for another text, also for a week."""
    if not _ISO.match(words):
        raise ValueError("no day")
    return datetime.fromisoformat(words)


def _date_reader(form: object, pivot: object = None) -> Callable[[str], date]:
    """Return the function that reads dates of a form; for another text it raises an exception.

    >>> _date_reader("%d.%m.%y", 2025)("02.03.51"), _date_reader("%d%b%Y")("02MAR1951")
    (datetime.date(1951, 3, 2), datetime.date(1951, 3, 2))

    Args:
        form: in the signs of Python's `strptime`. Numbers side by side have all their digits.
        pivot: latest year that a two-digit year can mean; None: the form has no such year.

    Raises:
        TableError: the form does not name a whole date, or names it twice; the error says what to write.
    """
    if not isinstance(form, str):
        raise TableError(f"form is {form!r}; give a text, for example '%d.%m.%Y' for 31.12.2020.")
    pieces = re.findall(r"%.?|\s+|[^%\s]+", form, re.DOTALL)
    signs = [piece[1:] for piece in pieces if piece[0] == "%"]
    if unknown := [sign for sign in signs if sign not in {*_PARTS, *_AROUND}]:
        known = " ".join(f"%{sign}" for sign in (*_PARTS, *_AROUND))
        raise TableError(f"form is {form!r}, and %{unknown[0]} is not read alike on every host; use {known}.")
    parts = [sign for sign in signs if sign in _PARTS]
    if len(set(parts)) < len(parts) or set(parts) not in _WHOLE:
        raise TableError(
            f"form is {form!r}, which does not name a date's day, month and year, each once; give for example "
            "'%d.%m.%Y' for 31.12.2020."
        )
    if ("y" in parts) is (pivot is None):
        raise TableError(
            f"form is {form!r} and pivot {pivot!r}; with years of two digits (%y), and only with them, give the latest "
            "year that they can mean, for example pivot=2025."
        )
    latest = pivot if isinstance(pivot, int) else 0
    if pivot is not None and latest not in range(1000, 10000):
        raise TableError(f"pivot is {pivot!r}; give a year of four digits, for example 2025.")
    pattern = re.compile("".join(_piece_pattern(pieces, place) for place in range(len(pieces))), re.IGNORECASE)
    return lambda words: _day_of_match(pattern.fullmatch(words), latest)


def _piece_pattern(pieces: list[str], place: int) -> str:
    """Return the pattern of one piece of a form; of numbers side by side, each has all its digits."""
    piece = pieces[place]
    if piece[0] != "%":
        return r"\s+" if piece.isspace() else re.escape(piece)
    if (sign := piece[1:]) in _AROUND:
        return _AROUND[sign]
    beside = pieces[max(place - 1, 0) : place] + pieces[place + 1 : place + 2]
    tight = any(other[0] == "%" and other[1:] not in "bBp%" for other in beside)
    return f"(?P<{sign}>{_PARTS[sign].replace('{1,', '{') if tight else _PARTS[sign]})"


def _day_of_match(found: re.Match[str] | None, latest: int) -> date:
    """Return the day that the parts of a date name, `latest` being the last year of two digits."""
    if found is None:
        raise ValueError("no date of this form")
    parts = found.groupdict()
    if "G" in parts:
        return date.fromisocalendar(*(int(parts[sign]) for sign in "GVu"))
    year = int(parts["Y"]) if "Y" in parts else latest - (latest - int(parts["y"])) % 100
    if "j" in parts:
        day = date(year, 1, 1) + timedelta(int(parts["j"]) - 1)
        if day.year != year:
            raise ValueError("no such day of the year")
        return day
    name = parts.get("b") or parts.get("B")
    return date(year, _MONTHS.index(name[:3].lower()) + 1 if name else int(parts["m"]), int(parts["d"]))
