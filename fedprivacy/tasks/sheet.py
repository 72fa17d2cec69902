"""Local sheet of a table, or of records that a task reads otherwise: what their owner should know of how it is read.

It counts private records, so it is never sent. It goes to the owner's terminal and log alone.

A client of which no record can be read is stopped by its owner, whom `fedprivacy deploy check` and the log tell so.
It does not refuse by itself when it is asked: a table with one readable row is a neighbour of one with none, so that a
refusal, by whatever code, would tell one record's content for no charge.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from multiprocessing import parent_process

from fedprivacy.tasks.cells import Cell
from fedprivacy.tasks.unreadable import Fault, masked
from fedprivacy.values.cell_text import text
from fedprivacy.values.wording import count_text, plural

log = logging.getLogger("fedprivacy.tables")

EXAMPLES = 3
"""Number of masked examples of each kind of unreadable cell."""

_FEWEST_NAMES, _MOST_ROWS_EACH, _SHORTEST_NAME = 10, 20.0, 4
"""Bounds on a column that looks like a person's identifier: different texts, mean rows of each, mean length."""


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
            examples[masked(cell)] = None

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
def collected() -> Iterator[Sheets]:
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
