"""Text of one value, the same in every type that a program may store it in.

A program stores a whole column in one type, which one cell can change: pandas makes floats of whole numbers beside an
empty cell, and moments of days beside one with a time of day. A reading must not change with it.

Formal guarantee: whole numbers below 2^53, floats, decimals, days and moments have one text each, whatever the type of
their column. A float has lost the last digits of longer whole numbers: readers refuse it by the column's type.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOST = "\N{REPLACEMENT CHARACTER}"
"""Character in the place of bytes that are none of the encoding."""

_WHOLE = {mark: re.compile(rf"(-?(?:0|[1-9][0-9]*))(?:{re.escape(mark)}0+|\.0)") for mark in ".,"}
_POWER = {mark: re.compile(rf"-?[1-9](?:{re.escape(mark)}[0-9]+)?e\+[0-9]{{2,3}}") for mark in ".,"}
"""Whole numbers as programs write floats, by the sign before decimals: 7.0, and 1e+05 of R, C and Python.

7.0 is whole under a comma, too: it is no thousand, and programs that know no comma write it only beside an empty cell.
"""

_TRUTH = {"TRUE": "True", "true": "True", "FALSE": "False", "false": "False"}
"""Truth values as R, spreadsheets and JSON write them: pandas writes its own, unless another cell is none."""

_SHORT = {"float32": np.float32, "float": np.float32, "float16": np.float16, "halffloat": np.float16}
"""Types of floats that are shorter than Python's, by the names that NumPy, torch and Arrow give them."""

_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


def plain(value: Any) -> Any:
    """Return a value of NumPy, torch or Arrow, or one of bytes, as Python has it; None for NaN, NaT and pandas' NA."""
    if type(value) in (str, int, float):
        return value if value == value else None  # noqa: PLR0124 - NaN is not itself
    try:
        if getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m"):
            value = value.astype(f"{value.dtype.kind}8[us]")  # item() of nanoseconds is a whole number
        if hasattr(value, "as_unit"):
            value = value.as_unit("us")
        kind = str(getattr(value, "dtype", getattr(value, "type", ""))).removeprefix("torch.")
        for unpack in ("as_py", "item", "to_pytimedelta"):
            value = getattr(value, unpack)() if hasattr(value, unpack) else value
        if kind in _SHORT and value is not None:
            value = float(str(_SHORT[kind](value)))
        if isinstance(value, bytes | bytearray):
            return value.decode(errors="replace")
        return None if value != value else value  # noqa: PLR0124 - nor is NaT, and NA raises
    except Exception:
        return None


def doubles(floats: NDArray[Any]) -> NDArray[np.float64]:
    """Return floats as float64: for a shorter one the number that its shortest text names, 0.7 and not 0.699999988.

    A program may shorten a whole column, or not, because of one cell.
    """
    with np.errstate(all="ignore"):  # infinite where a float of more bits is too large
        return (floats.astype(str) if floats.dtype.itemsize < 8 else floats).astype(np.float64)


def text(value: Any) -> str:
    """Return the text of a value, stripped; "" if it is nothing, nested or has no text. A text stays as it stands."""
    if type(value) is str:
        return value.strip()
    try:
        match value := plain(value):
            case None | list() | tuple() | dict() | set():
                return ""
            case str():
                return str.strip(value)
            case Decimal():
                words = f"{value:f}"  # its number of decimals is that of the whole column
                return _signless(words.rstrip("0").rstrip(".") if "." in words else words)
            case _:
                return canonical(str.strip(str(value)))
    except Exception:
        return ""


def canonical(words: str, decimal: str = ".") -> str:
    """Return a text without what a program adds for the sake of other rows.

    These are decimals of a whole number, midnight, and a truth value's letters.

    >>> [canonical(words) for words in ("7.0", "1e+05", "2020-12-31 00:00:00", "TRUE", "07", "7.50")]
    ['7', '100000', '2020-12-31', 'True', '07', '7.50']

    Args:
        words: a stripped text.
        decimal: sign before decimals: "." or ",".
    """
    if words[:1] not in "-0123456789":
        return _TRUTH.get(words, words)
    if words.endswith(" days 00:00:00"):
        return words.removesuffix(" 00:00:00")
    if whole := _WHOLE[decimal].fullmatch(words):
        return _signless(whole[1])
    if _POWER[decimal].fullmatch(words) and (value := float(words.replace(decimal, "."))).is_integer():
        return str(int(value))
    if moment := _MOMENT.fullmatch(words):
        day, time, fraction, zone = moment.groups(default="")
        rest = fraction.rstrip("0").rstrip(".") + zone
        return f"{day} {time}{rest}" if rest or time != "00:00:00" else day
    return words


def _signless(words: str) -> str:
    return "0" if words == "-0" else words
