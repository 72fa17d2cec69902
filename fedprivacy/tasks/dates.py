"""Dates as a table writes them; a text is read alike on every host, whatever its language, and by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

from fedprivacy.tasks.cells import TableError

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


def iso_day(words: str) -> date:
    """Return the day of "2000-12-31", with or without a time. Raises ValueError for another text, also for a week."""
    if not _ISO.match(words):
        raise ValueError("no day")
    return datetime.fromisoformat(words)


def reader_of(form: object, pivot: object = None) -> Callable[[str], date]:
    """Return the function that reads dates of a form; for another text it raises an exception.

    >>> reader_of("%d.%m.%y", 2025)("02.03.51"), reader_of("%d%b%Y")("02MAR1951")
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
    pattern = re.compile("".join(_matched(pieces, place) for place in range(len(pieces))), re.IGNORECASE)
    return lambda words: _day(pattern.fullmatch(words), latest)


def _matched(pieces: list[str], place: int) -> str:
    """Return the pattern of one piece of a form; of numbers side by side, each has all its digits."""
    piece = pieces[place]
    if piece[0] != "%":
        return r"\s+" if piece.isspace() else re.escape(piece)
    if (sign := piece[1:]) in _AROUND:
        return _AROUND[sign]
    beside = pieces[max(place - 1, 0) : place] + pieces[place + 1 : place + 2]
    tight = any(other[0] == "%" and other[1:] not in "bBp%" for other in beside)
    return f"(?P<{sign}>{_PARTS[sign].replace('{1,', '{') if tight else _PARTS[sign]})"


def _day(found: re.Match[str] | None, latest: int) -> date:
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
