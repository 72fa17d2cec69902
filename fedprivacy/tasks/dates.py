"""Dates as a table writes them; a text is read alike on every host, whatever its language, and by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from fedprivacy.tasks.cells import TableError

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
"""English names, which Python's own parser exchanges for those of the process's language."""

_PARTS = {
    **{"Y": r"\d{4}", "y": r"\d{2}", "m": r"\d{1,2}", "d": r"\d{1,2}", "b": r"[a-z]{3}", "B": r"[a-z]{3,9}"},
    **{"j": r"\d{1,3}", "G": r"\d{4}", "V": r"\d{1,2}", "u": r"[1-7]"},
}
_TIMES = {
    **{"H": r"(?:2[0-3]|[01]?\d)", "I": r"(?:1[0-2]|0?\d)", "M": r"[0-5]?\d", "S": r"(?:6[01]|[0-5]?\d)"},
    **{"f": r"\d{1,6}", "p": r"[ap]m", "z": r"(?:z|[+-]\d\d:?\d\d)", "%": "%"},
}
"""Signs of a form and the texts that they match: parts of the date, and what is around it."""

_WHOLE = {frozenset(signs) for year in "Yy" for signs in (f"{year}md", f"{year}bd", f"{year}Bd", f"{year}j")}
_WHOLE |= {frozenset("GVu")}
"""Sets of signs that name a day, no part of it twice."""

_ISO = re.compile(r"\d{4}-?(\d\d-?\d\d|W\d\d-?\d)")
_PIVOTS = range(1000, 10000)


def iso_day(words: str) -> date:
    """Return the day of "2000-12-31", with or without a time. Raises ValueError for another text, also for a week."""
    if not _ISO.match(words):
        raise ValueError("no day")
    return datetime.fromisoformat(words)


@dataclass(frozen=True, slots=True)
class DateForm:
    """A way to write a date.

    >>> DateForm.of("%d.%m.%y", 2025).day("02.03.51"), DateForm.of("%d%b%Y").day("02MAR1951")
    (datetime.date(1951, 3, 2), datetime.date(1951, 3, 2))
    """

    _pattern: re.Pattern[str]
    _pivot: int

    @classmethod
    def of(cls, form: object, pivot: object = None) -> DateForm:
        """Parse a form in the signs of Python's `strptime`.

        Args:
            form: such as "%d.%m.%Y". Numbers without a sign between them have all their digits.
            pivot: latest year that a two-digit year can mean; None: the form has none.

        Raises:
            TableError: the form does not name a whole date, or names it twice; the error says what to write.
        """
        if not isinstance(form, str):
            raise TableError(f"form is {form!r}; give a text, for example '%d.%m.%Y' for 31.12.2020.")
        pieces = re.findall(r"%.?|\s+|[^%\s]+", form, re.DOTALL)
        signs = [piece[1:] for piece in pieces if piece[0] == "%"]
        if unknown := [sign for sign in signs if sign not in _PARTS and sign not in _TIMES]:
            known = " ".join(f"%{sign}" for sign in (*_PARTS, *_TIMES))
            raise TableError(f"form is {form!r}, and %{unknown[0]} is not read alike on every host; use {known}.")
        parts = [sign for sign in signs if sign in _PARTS]
        if len(set(parts)) < len(parts) or frozenset(parts) not in _WHOLE:
            raise TableError(
                f"form is {form!r}, which does not name a date's day, month and year, each once; give for example "
                "'%d.%m.%Y' for 31.12.2020."
            )
        if ("y" in parts) is (pivot is None):
            raise TableError(
                f"form is {form!r} and pivot {pivot!r}; with years of two digits (%y), and only with them, give the "
                "latest year that they can mean, for example pivot=2025."
            )
        if pivot is not None and (isinstance(pivot, bool) or not isinstance(pivot, int) or pivot not in _PIVOTS):
            raise TableError(f"pivot is {pivot!r}; give a year of four digits, for example 2025.")
        pattern = "".join(_matched(pieces, place) for place in range(len(pieces)))
        return cls(re.compile(pattern, re.IGNORECASE), int(pivot) if isinstance(pivot, int) else 0)

    def day(self, words: str) -> date:
        """Return the day that a text names. Raises an exception if it names none."""
        found = self._pattern.fullmatch(words)
        if found is None:
            raise ValueError("no date of this form")
        parts = found.groupdict()
        if "G" in parts:
            return date.fromisocalendar(*(int(parts[sign]) for sign in "GVu"))
        year = int(parts["Y"]) if "Y" in parts else self._pivot - (self._pivot - int(parts["y"])) % 100
        if "j" in parts:
            day = date(year, 1, 1) + timedelta(int(parts["j"]) - 1)
            if day.year != year:
                raise ValueError("no such day of the year")
            return day
        return date(year, _month(parts), int(parts["d"]))


def _matched(pieces: list[str], place: int) -> str:
    """Return the pattern of one piece of a form; of numbers side by side, each has all its digits."""
    piece = pieces[place]
    if piece.isspace():
        return r"\s+"
    if piece[0] != "%":
        return re.escape(piece)
    if (sign := piece[1:]) in _TIMES:
        return _TIMES[sign]
    beside = pieces[max(place - 1, 0) : place] + pieces[place + 1 : place + 2]
    tight = any(other[0] == "%" and other[1:] not in "bBp%" for other in beside)
    return f"(?P<{sign}>{_PARTS[sign].replace('{1,', '{') if tight else _PARTS[sign]})"


def _month(parts: dict[str, str]) -> int:
    if "m" in parts:
        return int(parts["m"])
    names = _MONTHS if "B" in parts else [name[:3] for name in _MONTHS]
    return names.index((parts.get("B") or parts["b"]).lower()) + 1
