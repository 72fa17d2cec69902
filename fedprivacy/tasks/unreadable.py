"""Reasons for which a cell cannot be read, with what helps; for the eyes of the table's owner alone.

Nothing here decides how a cell is read: a reason is looked for only once a reader has found that it cannot be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from fedprivacy.tasks.cells import Cell, Notation, number
from fedprivacy.values.cell_text import LOST, text

MARKS = frozenset({"?", "-", "--", ".", "na", "n/a", "n.a.", "nan", "null", "none", "nd", "unknown", "missing", "k.a."})
"""Texts that programs and people write for nothing, in small letters."""

_LONGEST_CODE = 40
"""Most characters of a text with blanks that is not yet taken for free text."""


class Fault(NamedTuple):
    """Reason for which a cell cannot be read, and what helps."""

    reason: str
    remedy: str


BROKEN = Fault(
    "a row with more or fewer cells than columns", "see the delimiter, also at line ends, and quote cells that hold it"
)
OPEN_QUOTE = Fault(
    "a line whose quotes are not closed",
    "a record is a line: a line break in a cell would let one record swallow others; write the cell without it",
)

_WITHOUT = "write the target, or leave the row out of the file"
_OF_TARGET = {
    "empty": _WITHOUT,
    "a mark for nothing": _WITHOUT,
    "none of the levels": "name it in classes=[...]",
    "no number": "classes=[...], if these are classes",
    "a number that is too large": "write it in a larger unit",
}
"""Remedies by reason for a target, which has no reader of its own."""

_NAMELESS = Fault("no identifier", "each such row is a person by itself, whoever's it is")
_ROUNDED = Fault("an identifier in powers of ten", "it may have lost digits, and be several persons'; export texts")
_POWERS_OF_TEN = re.compile(r"[0-9](\.[0-9]+[eE]\+?|[eE]\+)[0-9]+")

_DECIMALS = {
    ".": [(re.compile(r"[+-]?\d*,\d+"), Fault("a number with a decimal comma", 'decimal=","'))],
    ",": [(re.compile(r"[+-]?\d*\.\d+"), Fault("a number with a decimal point", 'decimal="."'))],
}
_NUMBERS = [
    (re.compile(pattern), fault)
    for pattern, fault in (
        (
            r"[+-]?\d{1,3}([ .,'\u00a0]\d{3})+([.,]\d+)?",
            Fault("a number with signs between thousands", "write numbers without them"),
        ),
        (
            r"[<>=~]\s*[\d.,]+|[\d.,]+\s*[^\d\s.,]{1,8}",
            Fault("a number with a sign or a unit", "write the number alone"),
        ),
    )
]
"""Texts that are almost numbers, by the declared sign before decimals, and whatever that is."""


def masked(cell: Cell) -> str:
    """Return an example of a cell that shows its form and not its content: digits are 9, letters x and X.

    >>> masked("Meier, 70,5 kg")
    'Xxxxx, 99,9 xx'
    """
    return "".join(_masked(character) for character in text(cell)[:20])


def _masked(character: str) -> str:
    if character.isdigit():
        return "9"
    if character.isalpha():
        return "X" if character.isupper() else "x"
    return character if character.isprintable() else " "


def no_identifier(cell: Cell, name: str | None) -> Fault | None:
    """Explain a cell that tells no person, or may tell several; None: neither."""
    if name is None:
        return _NAMELESS
    return _ROUNDED if type(cell) is str and _POWERS_OF_TEN.fullmatch(cell.strip()) else None


def of_target(fault: Fault) -> Fault:
    """Return a fault with what helps if the column is the target."""
    return fault._replace(remedy=_OF_TARGET.get(fault.reason, fault.remedy))


def no_number(cell: Cell, notation: Notation) -> Fault:
    """Explain why a cell holds no number."""
    if found := _nothing_said(cell, notation, "fp.Number(..., missing=60) or indicate_missing=True"):
        return found
    words = text(cell)
    for pattern, fault in (*_DECIMALS[notation.decimal], *_NUMBERS):
        if pattern.fullmatch(words):
            return fault
    if not math.isnan(number(cell)):
        return Fault("a number that is too large", "fp.Number(scale=...), or write it in a larger unit")
    return _free_text(words) or Fault("no number", "fp.Category([...]), if these are categories")


def no_level(cell: Cell, levels: Iterable[object], notation: Notation, prefix: int | None) -> Fault:
    """Explain why a cell is none of the levels."""
    if found := _nothing_said(cell, notation, "fp.Category(..., missing=LEVEL) or indicate_missing=True"):
        return found
    words = text(cell)
    if words.casefold()[:prefix] in {text(level).casefold() for level in levels}:
        return Fault("a level in other letters", "fold_case=True")
    if any(number(cell) == number(level) for level in levels):
        return Fault(
            "the number of a level, written otherwise", "give the levels as numbers, [1, 2] and not ['1', '2']"
        )
    return _free_text(words) or Fault("none of the levels", "fp.Category(..., other=True), or name it among the levels")


def no_date(cell: Cell, form: str | None, notation: Notation) -> Fault:
    """Explain why a cell holds no date."""
    if found := _nothing_said(cell, notation, "fp.Date(..., missing=0) or indicate_missing=True"):
        return found
    expected = "no date like 2020-12-31" if form is None else f"no date of the form {form}"
    return _free_text(text(cell)) or Fault(expected, 'fp.Date(..., form="%d.%m.%Y") for 31.12.2020')


def _nothing_said(cell: Cell, notation: Notation, remedy: str) -> Fault | None:
    """Explain an empty cell, a mark for nothing, and a cell whose bytes cannot be read."""
    words = text(cell)
    if notation.is_empty(cell) or not words:
        return Fault("empty", remedy)
    if words.casefold() in MARKS:
        declared = replace(notation, missing=(*notation.missing, words)).missing
        return Fault("a mark for nothing", f"missing={declared!r}, and {remedy}")
    if LOST in words:
        return Fault("bytes that are not in the file's encoding", 'encoding="latin-1", or save the file as UTF-8')
    return None


def _free_text(words: str) -> Fault | None:
    if len(words) <= _LONGEST_CODE or " " not in words:
        return None
    return Fault("free text", "no reader makes numbers of it: a model of texts does, docs/how-to/transformers.md")
