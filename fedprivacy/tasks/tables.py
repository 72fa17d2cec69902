"""CSV and Parquet files as shards and as tables; each row is read by public constants and by nothing else.

Formal guarantee: the values read from a row depend on the arguments, which are public, and on the row itself; types and
shapes depend on the arguments alone. No row changes another, or makes reading fail: an unreadable row becomes a null
row, and an unreadable cell an empty one. Levels, centres and scales are given, and never looked up in the records.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.tasks.cells import PLAIN, Cell, Levels, Notation, TableError, check_levels_of_floats, list_of, read_each
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.features import Category, Feature, Number
from fedprivacy.tasks.sheet import (
    CellTally,
    Fault,
    Sheet,
    looks_like_a_person,
    name_owner,
    no_identifier,
    target_fault,
    tell,
)
from fedprivacy.tasks.splits import Split, Splittable
from fedprivacy.tasks.table_files import TableFile, TablePart
from fedprivacy.tasks.task import Shard, ShardSource
from fedprivacy.values.unit import identifier, person_numbers

_ROW_NUMBERS = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")
"""Names of columns in which R and pandas keep the numbers of rows: another row more or less can change them all."""

_SETTLED = 2.0
"""Seconds after its last change from which on a file is known by its time and size."""


def load_table(
    path: str | Path,
    *,
    target: str,
    features: Sequence[str] | Mapping[str, Feature] | None = None,
    classes: Sequence[object] | None = None,
    only: Mapping[str, object] | None = None,
    split: Split | None = None,
    source: ShardSource | None = None,
    person: str | None = None,
    rows_per_person: int | None = None,
    decimal: str = ".",
    fold_case: bool = False,
    missing: Sequence[str] = (),
    delimiter: str = ",",
    encoding: str = "utf-8",
) -> Shard:
    """Read a CSV (with a header, a record a line) or Parquet file as a shard.

    >>> import fedprivacy as fp
    >>> from pathlib import Path
    >>> text = "age,sex,ill\\n70,f,1\\n50,m,0\\n?,f,1\\n"
    >>> _ = Path("people.csv").write_text(text)
    >>> features = {"age": fp.Number(60, 10), "sex": fp.Category(["f", "m"])}
    >>> fp.load_table("people.csv", target="ill", classes=[0, 1], features=features).inputs
    tensor([[ 1.,  1.,  0.],
            [-1.,  0.,  1.],
            [nan, nan, nan]])

    What cannot be read is counted in a local sheet (`fedprivacy.tasks.sheet`), for the owner's log or terminal alone.

    Formal guarantee: see this module.

    Args:
        path: file whose name ends with .csv, .csv.gz or .parquet.
        target: column to predict.
        features: columns of the inputs, in this order: numbers as they are, or a reader for each: a Number, a Category
            or a Date. None: every other column, as numbers, but not row numbers (a column without a name).
        classes: values of the target, which become 0, 1, ...; None: it is a number. The target of an unreadable row
            is 0.
        only: a level, or a list of levels, by column, which selects rows, for example a public test set. The number of
            selected rows depends on their content: with public shard sizes, name nothing that a private row could
            change.
        split: split of a simulation, which gives each client its part of the rows; None: all rows.
        source: the argument of `Task.shard`, which names the part.
        person: column that tells whose each row is, by its text; a record is then a person. A row without an
            identifier (`fedprivacy.values.unit.person_numbers`) is a person of its own, because it must not make
            reading fail: the guarantee holds for that row by itself. None: each row is a record.
        rows_per_person: m, the most rows of a person that count, public: the first m that can be read.
        decimal: sign before the decimals of a number: "." or ",".
        fold_case: whether "Yes" and "yes" are the same level, class or part of the split.
        missing: texts of cells that count as empty, such as ("?", "NA"); a blank cell always does.
        delimiter, encoding: those of a CSV file. `decimal` to `encoding` are public, and the same at every client.

    Raises:
        TableError: there is no such file or column, it is of another kind, or it cannot be split as asked; or by its
            type a column of Parquet does not tell persons or levels apart: floating-point numbers.
    """
    if (person is None) is not (rows_per_person is None):
        raise TableError(f"person is {person!r} and rows_per_person {rows_per_person!r}; give both, or neither.")
    file = TableFile.of(Path(path), delimiter, encoding)
    if not isinstance(features, Mapping):
        others = [name for name in file.columns if name not in (target, person) and not _ROW_NUMBERS.fullmatch(name)]
        features = {name: Number() for name in (others if features is None else list_of("features", features))}
    for name, feature in features.items():
        if not hasattr(feature, "inputs"):
            kind = type(feature).__name__
            raise TableError(
                f"the reader of '{name}' is a {kind}; give fp.Number, fp.Category or fp.Date. Free text has none: read "
                "it by read_table, for a model of texts."
            )
    splits = split if source is not None and source.partition_id is not None else None
    reading = _Reading(
        file=file,
        notation=Notation(decimal, fold_case, missing),
        features=dict(features),
        target=target,
        classes=None if classes is None else list_of("classes", classes),
        only=dict(only or {}),
        person=person,
        split_by=() if splits is None else splits.reads,
    )
    rows = _last_read(reading) if splits else reading.rows()
    tell(rows.sheet, whole=source is not None and source.folder is not None)
    inputs, targets, persons = torch.from_numpy(rows.inputs), torch.from_numpy(rows.targets), rows.persons
    if splits is not None and source is not None:
        mine = splits.rows(rows.splittable(reading.notation), source.num_partitions or 1)[source.partition_id or 0]
        inputs, targets = inputs[mine], targets[mine]  # copies
        persons = [persons[place] for place in mine] if persons else persons
    if person is None:
        return Shard(inputs, targets)  # null where nothing could be read
    return Shard(inputs, targets, persons=persons, most_rows=rows_per_person)


def read_table(
    path: str | Path,
    *,
    only: Mapping[str, object] | None = None,
    split: Split | None = None,
    source: ShardSource | None = None,
    target: str | None = None,
    classes: Sequence[object] | None = None,
    person: str | None = None,
    rows_per_person: int | None = None,
    summaries: Mapping[str, str] | None = None,
    decimal: str = ".",
    fold_case: bool = False,
    missing: Sequence[str] = (),
    delimiter: str = ",",
    encoding: str = "utf-8",
) -> Table:
    """Read a CSV (with a header, a row a line) or Parquet file by column, for questions.

    >>> import fedprivacy as fp
    >>> from pathlib import Path
    >>> _ = Path("people.csv").write_text("age,sex\\n70,f\\n50\\n?,m\\n")
    >>> table = fp.read_table("people.csv")
    >>> table.numbers("age"), table.texts("sex")
    (array([70., nan, nan]), ['f', '', 'm'])

    Formal guarantee: see this module. A row with too many or too few cells is a record as well, of which nothing can be
    read: without `only`, the number of records depends on the number of rows alone.

    Args:
        path: file whose name ends with .csv, .csv.gz or .parquet.
        only: a level, or a list of levels, by column, which selects rows. The number of selected rows depends on their
            content.
        split: split of a simulation, the same as the shard's: each client gets the same rows of the file.
        source: the argument of `Task.table`, which names the part.
        target, classes: those of the shard, if the split uses them, as `ByDirichlet` does; otherwise not needed.
        person, rows_per_person: those of the shard, whose records are persons; `person` alone only splits.
        summaries: how a person's rows become one number, by column; see `Table`.
        decimal, fold_case, missing, delimiter, encoding: as for `load_table`.

    Raises:
        TableError: there is no such file or column, it is of another kind, or it cannot be split as asked.
    """
    file = TableFile.of(Path(path), delimiter, encoding)
    splits = split if source is not None and source.partition_id is not None else None
    reading = _Reading(
        file=file,
        notation=Notation(decimal, fold_case, missing),
        target=target,
        classes=None if classes is None else list_of("classes", classes),
        only=dict(only or {}),
        person=person,
        split_by=tuple(file.columns),
    )
    rows = reading.rows()
    cells, persons = rows.cells, rows.persons
    if splits is not None and source is not None:
        mine = splits.rows(rows.splittable(reading.notation), source.num_partitions or 1)[source.partition_id or 0]
        cells = {name: [column[place] for place in mine] for name, column in cells.items()}
        persons = [persons[place] for place in mine] if person else persons
    columns = {name: np.array(cells[name], np.float64) if name in file.floating else cells[name] for name in cells}
    whose = None if rows_per_person is None or person is None else persons
    return Table(columns, decimal, fold_case, missing, whose, rows_per_person, summaries or {})


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a table, before a split.

    Attributes:
        inputs, targets: shape [rows, ...]; inputs are NaN where a row cannot be read. Targets are empty if not named.
        persons: whose each row is: a text, None where that is not said; empty if not asked.
        cells: cells of the columns that the split reads, or of all.
        sheet: what the owner should know.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[Any]
    persons: list[str | None]
    cells: Mapping[str, list[Cell]]
    sheet: Sheet

    def splittable(self, notation: Notation) -> Splittable:
        """Return the rows as a split sees them."""
        persons = person_numbers(self.persons) or range(self.sheet.rows)
        return Splittable(self.cells, self.targets, np.array(persons, np.int64), notation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The way to read a file: all of it is public."""

    file: TableFile
    notation: Notation
    target: str | None
    classes: tuple[object, ...] | None
    only: Mapping[str, object]
    person: str | None
    split_by: tuple[str, ...]
    features: Mapping[str, Feature] = field(default_factory=dict)

    def rows(self) -> _Rows:
        """Read the file, part by part. Raises TableError: a column is not there, or two classes are the same."""
        named = [name for name in (self.target, self.person) if name is not None]
        columns = list(dict.fromkeys([*named, *self.features, *self.only, *self.split_by]))
        self.file.check(columns)
        self._check_types()
        if self.person is not None:
            name_owner(self.person)
        collected = _Collected(self)
        for part in self.file.parts(columns):
            collected.add(part)
        return collected.rows()

    def _check_types(self) -> None:
        """Check the types of a Parquet file's columns, which are public, against what is read from them.

        Raises:
            TableError: floating-point numbers do not tell persons apart, or a level from its neighbours.
        """
        if self.person in self.file.floating:
            raise TableError(
                f"column '{self.person}' of '{self.file.path}' is floating point, which does not tell persons apart: "
                "long numbers become the same; write it as text or nullable whole numbers (pandas: Int64)."
            )
        levels = {name: getattr(feature, "levels", ()) for name, feature in self.features.items()}
        levels |= {name: _either(chosen) for name, chosen in self.only.items()}
        if self.target is not None:
            levels[self.target] = self.classes or ()
        for name in self.file.floating & levels.keys():
            check_levels_of_floats(name, levels[name])

    def identifiers(self) -> tuple[str, ...]:
        """Return the columns that look like a person's identifier among the first rows, if no person is declared."""
        first = next(self.file.parts(list(dict.fromkeys(self.file.columns))), None) if self.person is None else None
        return tuple(name for name, cells in first.cells.items() if looks_like_a_person(cells)) if first else ()


def _either(chosen: object) -> list[object]:
    """Return the levels that select rows: one, or each of a list."""
    return chosen if isinstance(chosen, list) and chosen else [chosen]


def _levels(column: str, chosen: object, notation: Notation) -> Levels:
    """Return the lookup of the levels that select rows."""
    try:
        return Levels(_either(chosen), notation)
    except TableError as error:
        raise TableError(f"only is {chosen!r} for '{column}': {error}") from None


class _Class(Category):
    """Reader of a target: its only input is the place of its class."""

    def inputs(self, cell: Cell, notation: Notation = PLAIN) -> list[float]:
        """Return the place of the class; NaN: it is none."""
        place = self.place(cell, notation)
        return [math.nan if place is None else float(place)]

    def fault(self, cell: Cell, notation: Notation) -> Fault:
        """Explain why a cell names no class."""
        return target_fault(super().fault(cell, notation))


class _Figure(Number):
    """Reader of a target that is a number."""

    def fault(self, cell: Cell, notation: Notation) -> Fault:
        """Explain why a cell holds no number."""
        return target_fault(super().fault(cell, notation))


class _Collected:
    """The rows read so far."""

    def __init__(self, reading: _Reading) -> None:
        self._reading, self._tally = reading, CellTally()
        self._chosen = [(name, _levels(name, value, reading.notation)) for name, value in reading.only.items()]
        self._label: Feature = _Figure() if reading.classes is None else _Class(reading.classes)
        self._inputs: list[NDArray[np.float32]] = []
        self._labels: list[NDArray[np.float64]] = []
        self._persons: list[str | None] = []
        self._cells: dict[str, list[Cell]] = {name: [] for name in reading.split_by}
        self._texts: dict[str, str] = {}
        self._count = 0

    def add(self, part: TablePart) -> None:
        """Read some more rows."""
        reading, chosen = self._reading, self._select(part)
        cells = (
            {name: [column[row] for row in chosen] for name, column in part.cells.items()}
            if reading.only
            else part.cells
        )
        faults = {place: part.faults[row] for place, row in enumerate(chosen) if row in part.faults}
        for fault in faults.values():
            self._tally.add("", fault)
        columns = [self._read(name, feature, cells[name], faults) for name, feature in reading.features.items()]
        inputs = np.concatenate([np.empty((len(chosen), 0), np.float32), *columns], 1)
        if reading.target is not None:
            labels = self._read(reading.target, self._label, cells[reading.target], faults)
            unknown = np.isnan(labels).any(1)
            inputs[unknown] = np.nan
            self._labels.append(np.where(unknown, 0, labels[:, 0]))
        inputs[np.isnan(inputs).any(1)] = np.nan
        self._inputs.append(inputs)
        if reading.person is not None:
            whose = read_each(cells[reading.person], lambda cell: identifier(reading.notation.text(cell)))
            for cell, name in zip(cells[reading.person], whose, strict=True):
                if doubt := no_identifier(cell, name):
                    self._tally.add(reading.person, doubt, cell)
            self._persons += whose
        for name, kept in self._cells.items():
            kept += [self._texts.setdefault(cell, cell) if type(cell) is str else cell for cell in cells[name]]
        self._count += len(chosen)

    def rows(self) -> _Rows:
        """Return all rows, with the sheet of what could not be read."""
        reading = self._reading
        width = sum(len(feature.inputs(None, reading.notation)) for feature in reading.features.values())
        inputs = np.concatenate([np.empty((0, width), np.float32), *self._inputs])
        self._inputs.clear()
        kind = np.float32 if reading.classes is None else np.int64
        targets = np.concatenate([np.empty(0), *self._labels]).astype(kind)
        return _Rows(inputs, targets, self._persons, self._cells, self._sheet(inputs, targets))

    def _sheet(self, inputs: NDArray[np.float32], targets: NDArray[Any]) -> Sheet:
        classes, readable = self._reading.classes or (), ~np.isnan(inputs).any(1)
        counts = np.bincount(targets[readable], minlength=len(classes)) if classes and len(targets) else ()
        return Sheet(
            file=self._reading.file.path.name,
            rows=self._count,
            readable=int(readable.sum()),
            person=self._reading.person,
            persons=None if self._reading.person is None else 1 + max(person_numbers(self._persons), default=-1),
            classes=dict(zip(map(str, classes), map(int, counts), strict=False)),
            unreadable=self._tally.unreadable(),
            identifiers=self._reading.identifiers(),
        )

    def _select(self, part: TablePart) -> Sequence[int]:
        """Return the numbers of the rows that are asked for."""
        chosen = np.ones(len(next(iter(part.cells.values()))), np.bool_)
        for name, known in self._chosen:
            chosen &= known.codes(part.cells[name]) >= 0
        return [int(row) for row in np.flatnonzero(chosen)] if self._chosen else range(len(chosen))

    def _read(
        self, name: str, feature: Feature, cells: Sequence[Cell], faults: Mapping[int, object]
    ) -> NDArray[np.float32]:
        """Read a column, shape [rows, inputs]; NaN in all of a cell's inputs where it cannot be read."""
        notation = self._reading.notation
        read: Callable[[Cell], list[float]] = lambda cell: feature.inputs(cell, notation)  # noqa: E731
        with np.errstate(over="ignore"):  # the value is then infinite
            values = np.array(read_each(cells, read), np.float64).astype(np.float32)
        values = values.reshape(len(cells), len(feature.inputs(None, notation)))  # of no cells, too
        unreadable = ~np.isfinite(values).all(1)
        values[unreadable] = np.nan
        lost = [cells[place] for place in map(int, np.flatnonzero(unreadable)) if place not in faults]
        for cell, fault in zip(lost, read_each(lost, lambda cell: feature.fault(cell, notation)), strict=True):
            self._tally.add(name, fault, cell)
        return values


_READ: list[tuple[Hashable, _Rows]] = []
"""The last table that was split, and how it was read: every client of a simulation asks for its part of it."""


def _last_read(reading: _Reading) -> _Rows:
    """Read a file, unless the same was read before and the file has not changed since."""
    found = reading.file.path.stat()
    key = repr(reading), found.st_mtime_ns, found.st_size, found.st_ino
    if time.time() - found.st_mtime < _SETTLED:  # it might change again within the resolution of its time
        return reading.rows()
    if not any(key == read for read, _ in _READ):
        _READ[:] = [(key, reading.rows())]
    return _READ[0][1]
