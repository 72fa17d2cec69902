"""Local sheet of a table, or of records that a task reads otherwise: what their owner should know of how it is read.

It counts private records, so it is never sent. It goes to the owner's terminal and log alone. Nothing here decides how
a cell is read: the reason why it cannot be, and what helps, is looked for only once a reader has found so.

A client of which no record can be read is stopped by its owner, whom `fedprivacy deploy check` and the log tell so.
It does not refuse by itself when it is asked: a table with one readable row is a neighbour of one with none, so that a
refusal, by whatever code, would tell one record's content for no charge.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from multiprocessing import parent_process
from typing import NamedTuple

from fedprivacy.tasks.cells import Cell, Notation, number
from fedprivacy.values.cell_text import LOST, text
from fedprivacy.values.wording import count_text, plural

log = logging.getLogger("fedprivacy.tables")

EXAMPLES = 3
"""Number of masked examples of each kind of unreadable cell."""

_FEWEST_NAMES, _MOST_ROWS_EACH, _SHORTEST_NAME = 10, 20.0, 4
"""Bounds on a column that looks like a person's identifier: different texts, mean rows of each, mean length."""

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


@dataclass(frozen=True, slots=True)
class UnreadableCells:
    """Cells of one column that cannot be read for one reason; of a column named "" whole rows.

    Attributes:
        column, reason, cells: column, reason and number of cells.
        examples: up to three of them, masked.
        remedy: what helps.
    """

    column: str
    reason: str
    cells: int
    examples: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        like = f", like {', '.join(map(repr, self.examples))}" if any(self.examples) else ""
        where = f"{self.column}: {count_text(self.cells, 'cell')}" if self.column else count_text(self.cells, "row")
        return f"{where}, {self.reason}{like} → {self.remedy}"


@dataclass(frozen=True, slots=True)
class Sheet:
    """The local sheet of one table, or of a task's records.

    Attributes:
        file: name of the file, or of the task.
        rows, readable: number of rows, and of those that can be read.
        person, persons: column that tells whose a row is, and number of persons; None: none are declared.
        classes: number of rows of each class.
        unreadable: cells that cannot be read, the most frequent first.
        identifiers: columns that look like a person's identifier, if no person is declared.
        each: word for a row: "row" of a table, otherwise the unit's, such as "patient".
    """

    file: str
    rows: int
    readable: int
    person: str | None
    persons: int | None
    classes: Mapping[str, int]
    unreadable: tuple[UnreadableCells, ...]
    identifiers: tuple[str, ...] = ()
    each: str = "row"

    @classmethod
    def of_records(cls, task: str, unit: str, records: int, readable: int) -> Sheet:
        """Return the sheet of a shard that tells by itself which of its records are null."""
        return cls(task, records, readable, None, None, {}, (), each=unit)

    @property
    def hopeless(self) -> bool:
        """True if there are rows, and none can be read."""
        return self.rows > 0 and self.readable == 0

    @property
    def lines(self) -> list[str]:
        """The whole sheet for people."""
        persons = "" if self.persons is None else f" of {count_text(self.persons, 'person')}"
        classes = ", ".join(f"{name}: {count:,}" for name, count in self.classes.items())
        found = [f"{self.file}: {self.rows:,} {plural(self.each)}{persons}, {self.readable:,} can be read"]
        found += [f"classes {classes}"] if classes else []
        found += [
            f"no {self.each} can be read: stop this client and mend it; it would spend its budget on nothing"
        ] * self.hopeless
        found += map(str, self.unreadable)
        found += [
            f"{column} looks like a person's identifier, and rows are protected, not persons: see load_table(person=)"
            for column in self.identifiers
        ]
        return found

    @property
    def in_short(self) -> list[str]:
        """The sheet in two lines, of rows that cannot be read; empty if there are none."""
        if self.readable == self.rows:
            return []
        rows = f"{self.rows - self.readable:,} of {self.rows:,} {plural(self.each)}"
        least = f"{rows} of {self.file} cannot be read and count for nothing"
        others = len(self.unreadable) - 1
        more = f"; and {count_text(others, 'other reason')}, which 'fedprivacy doctor' shows" if others > 0 else ""
        return [f"{least}.", f"{self.unreadable[0]}{more}"] if self.unreadable else [f"{least}."]


@dataclass(slots=True)
class CellTally:
    """Count of the cells that a reader could not read so far."""

    _counts: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    _examples: dict[tuple[str, Fault], dict[str, None]] = field(default_factory=dict)

    def add(self, column: str, fault: Fault, cell: Cell = None) -> None:
        """Count one cell that cannot be read."""
        key = column, fault
        self._counts[key] += 1
        examples = self._examples.setdefault(key, {})
        if len(examples) < EXAMPLES:
            examples[mask_cell(cell)] = None

    def unreadable(self) -> tuple[UnreadableCells, ...]:
        """Return all cells that cannot be read, the most frequent first."""
        return tuple(
            UnreadableCells(column, fault.reason, count, tuple(self._examples[column, fault]), fault.remedy)
            for (column, fault), count in self._counts.most_common()
        )


def looks_like_a_person(cells: Sequence[Cell]) -> bool:
    """Return whether a column's cells look like identifiers of persons: most are rare, some come back.

    Numbers with decimals, dates and words without a digit are taken for measurements and categories.
    """
    words = [word for word in map(text, cells) if word]
    names = Counter(words)
    if not _FEWEST_NAMES <= len(names) < len(words) < _MOST_ROWS_EACH * len(names):
        return False
    if sum(map(len, names)) < _SHORTEST_NAME * len(names) or max(names.values()) > max(
        _MOST_ROWS_EACH, len(words) / 50
    ):
        return False
    return all(name.isalnum() and any(sign.isdigit() for sign in name) for name in names)


class Sheets(list[Sheet]):
    """The sheets of a block, and the columns that tell whose a row is, also of tables that have no sheet."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: set[str] = set()


_COLLECTED: ContextVar[Sheets | None] = ContextVar("sheets", default=None)
_TOLD: set[str] = set()


@contextmanager
def collecting_sheets() -> Iterator[Sheets]:
    """Collect the sheets of everything that is read in the block, instead of logging them."""
    outer, sheets = _COLLECTED.get(), Sheets()
    token = _COLLECTED.set(sheets)
    try:
        yield sheets
    finally:
        _COLLECTED.reset(token)
        if outer is not None:
            outer.owners |= sheets.owners


def name_owner(column: str) -> None:
    """Say which column of a table tells whose a row is, to the block that collects sheets."""
    if (sheets := _COLLECTED.get()) is not None:
        sheets.owners.add(column)


def tell(sheet: Sheet, *, whole: bool) -> None:
    """Log a sheet once in a process, or hand it to the block that collects them.

    Args:
        sheet: what was read.
        whole: whether its owner's log gets all of it, as in a deployment; otherwise a simulation's terminal gets two
            lines, if there is something that cannot be read.
    """
    if (sheets := _COLLECTED.get()) is not None:
        sheets.append(sheet)
        return
    lines = sheet.lines if whole else sheet.in_short
    if parent_process() is None or whole:  # a simulation's workers read what their parent has read
        _log(lines, logging.WARNING if sheet.in_short else logging.INFO)


def _log(lines: Iterable[str], level: int) -> None:
    if (words := "\n".join(lines)) and words not in _TOLD:
        _TOLD.add(words)
        log.log(level, "%s", words)


def mask_cell(cell: Cell) -> str:
    """Return an example of a cell that shows its form and not its content: digits are 9, letters x and X.

    >>> mask_cell("Meier, 70,5 kg")
    'Xxxxx, 99,9 xx'
    """
    return "".join(_mask(character) for character in text(cell)[:20])


def _mask(character: str) -> str:
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


def target_fault(fault: Fault) -> Fault:
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
