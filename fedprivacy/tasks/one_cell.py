"""A trial of how a task reads its tables: one cell is changed, and every other record must stay what it was.

A reader that looks at a whole column, as pandas does to find its type, lets one record decide what all others say. No
clipping bounds that. The trial works on a copy of a few rows, in a temporary folder that only its owner can read.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.loader import offers_table, shard_of, table_of
from fedprivacy.tasks.protocol import Shard, ShardSource, Task

ROWS = 40
"""Number of rows that are copied of each table, from its beginning."""

MOST_FILES = 1_000
"""Maximum number of files in a folder that is tried; one with more is not one client's data."""

PATIENCE = 10.0
"""Seconds after which no other column is tried; a task may load a tokenizer for each reading."""

CELLS: Mapping[str, str] = {
    "a text": "?",
    "nothing": "",
    "NaN": "nan",
    "a fraction": "0.5",
    "a huge number": "1e400",
    "a truth value": "True",
    "a date": "2020-02-30",
}
"""Contents that are written into a cell, by what they are called in a message."""

READERS = "fedprivacy.load_table and fedprivacy.read_table read each cell by itself"


@dataclass(frozen=True, slots=True)
class Misread:
    """One cell that changes more than its own record. No value of a record is in it.

    Attributes:
        file, column: where the cell is.
        cell: what was written there, in words.
        what: what became of the others.
    """

    file: str
    column: str
    cell: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}, column '{self.column}': {self.cell} in one cell, and {self.what}"


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of trying a folder's tables.

    Attributes:
        columns: that were tried, of all tables.
        left: that were not, because the time was over.
        misread: one for each column that fails, by the first cell that does.
        untried: why nothing could be tried; empty: something was.
    """

    columns: int = 0
    left: int = 0
    misread: tuple[Misread, ...] = ()
    untried: str = ""


def try_cells(task: Task, folder: Path, patience: float = PATIENCE) -> Trial:
    """Change one cell after another in a copy of the folder's tables, and read the shard and the table of each.

    Args:
        task: reads `ShardSource(folder=...)`.
        folder: a data owner's.
        patience: in seconds.
    """
    entries = sorted(folder.iterdir())
    if len(entries) > MOST_FILES:
        return Trial(untried=f"{folder} holds more than {MOST_FILES} files")
    tables = {file: table for file in entries if (table := _opened(file)) is not None}
    if not tables:
        return Trial(untried=f"{folder} holds no .csv and no .parquet file with three rows")
    ends, tried, left, misread, told = time.monotonic() + patience, 0, 0, list[Misread](), False
    for file, table in tables.items():
        copy = _Copy(task, file, table)
        usual = copy.read()
        if usual is None:
            return Trial(untried=f"the task does not read a copy of {file.name} with a few rows")
        for column in table.columns:
            if time.monotonic() > ends:
                left += 1
                continue
            tried += 1
            changes = list(_changes(copy, column, usual))
            told = told or any(what is not None for _, what in changes)
            misread += [Misread(file.name, column, cell, what) for cell, what in changes if what][:1]
    if tried and not told:
        return Trial(untried=f"the task reads no cell of {', '.join(file.name for file in tables)}")
    return Trial(tried, left, tuple(misread))


def _changes(copy: _Copy, column: str, usual: _Reading) -> Iterator[tuple[str, str | None]]:
    """Yield each content of a cell with its effect on other records, empty if none; None if no record changed."""
    for row in (len(copy.table) // 2, len(copy.table) - 1):
        for cell, text in CELLS.items():
            now = copy.read((row, column, text))
            if now is None:
                yield cell, "reading fails for everybody"
            else:
                yield cell, None if now == usual else now.beside(usual)


class _Reading(NamedTuple):
    """The records as the shard has them and as the table does, each as bytes; and how many, where that is public."""

    records: tuple[Counter[bytes], Counter[bytes]]
    size: int

    def beside(self, usual: _Reading) -> str:
        """Describe the change if more than the cell's own record changed; empty otherwise."""
        if any((before - after).total() > 1 for before, after in zip(usual.records, self.records, strict=True)):
            return "other records change"
        return "" if self.size == usual.size else "the number of records, which is public, changes"


@dataclass(frozen=True, slots=True)
class _Copy:
    """A data owner's folder with few rows in one table, which can be read with one cell changed."""

    task: Task
    file: Path
    table: _Csv | _Parquet

    def read(self, changed: tuple[int, str, str] | None = None) -> _Reading | None:
        """Read a copy, with a text written into a row and column if `changed` names them; None if the task fails."""
        with TemporaryDirectory() as made:
            copy = Path(made)
            for other in self.file.parent.iterdir():
                if other.name != self.file.name:
                    (copy / other.name).symlink_to(other.resolve())
            self.table.write(copy / self.file.name, changed)
            source = ShardSource(folder=copy)
            try:
                shard = shard_of(self.task, source)
                table = table_of(self.task, source) if offers_table(self.task) else None
            except Exception:  # whose text may hold values
                return None
        asked = Counter[bytes]() if table is None else _cells(table)
        return _Reading((_records(shard), asked), len(shard) if self.task.shard_sizes_public else 0)


def _records(shard: Shard) -> Counter[bytes]:
    """Shape, type and values of each record."""
    kinds = [f"{rows.shape[1:]} {rows.dtype} ".encode() for rows in (shard.inputs, shard.targets)]
    pairs = zip(shard.inputs.cpu(), shard.targets.cpu(), strict=True)
    return Counter(b"".join(k + _bytes(v) for k, v in zip(kinds, pair, strict=True)) for pair in pairs)


def _bytes(values: Tensor) -> bytes:
    """The bytes of a tensor of any type."""
    flat: bytes = values.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()
    return flat


def _cells(table: Table) -> Counter[bytes]:
    """The numbers and texts of each row."""
    read = [zip(table.numbers(column), table.texts(column), strict=True) for column in table.columns]
    return Counter(repr([(number.tobytes(), text) for number, text in row]).encode() for row in zip(*read, strict=True))


def _opened(file: Path) -> _Csv | _Parquet | None:
    """A table with a few rows of a file; None: it is none, or has too few."""
    try:
        table = _Csv.of(file) if file.suffix == ".csv" else _Parquet.of(file) if file.suffix == ".parquet" else None
    except Exception:  # the task's own reading says what is wrong with it
        return None
    return table if table is not None and len(table) >= 3 else None  # one that changes, and others


@dataclass(frozen=True, slots=True)
class _Csv:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    delimiter: str

    @classmethod
    def of(cls, file: Path) -> _Csv:
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as opened:
            delimiter = max(",;\t|", key=opened.readline().count)
            opened.seek(0)
            columns, *rows = islice(csv.reader(opened, delimiter=delimiter), ROWS + 1)
        return cls(columns, rows, delimiter)

    def __len__(self) -> int:
        return len(self.rows)

    def write(self, file: Path, changed: tuple[int, str, str] | None = None) -> None:
        rows = [list(row) for row in self.rows]
        if changed is not None:
            row, column, text = changed
            rows[row][self.columns.index(column)] = text
        with file.open("w", newline="") as opened:
            csv.writer(opened, delimiter=self.delimiter, lineterminator="\n").writerows([self.columns, *rows])


@dataclass(frozen=True, slots=True)
class _Parquet:
    """Types are the file's: a cell that its column cannot hold is missing instead."""

    table: Any

    @classmethod
    def of(cls, file: Path) -> _Parquet:
        import pyarrow
        from pyarrow import parquet

        opened = parquet.ParquetFile(file)
        return cls(pyarrow.Table.from_batches(islice(opened.iter_batches(ROWS), 1), opened.schema_arrow))

    @property
    def columns(self) -> Sequence[str]:
        return list(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def write(self, file: Path, changed: tuple[int, str, str] | None = None) -> None:
        import pyarrow
        from pyarrow import parquet

        table = self.table
        if changed is not None:
            row, column, text = changed
            place, kind = table.column_names.index(column), table.schema.field(column)
            cells = table.column(place).to_pylist()
            try:
                cell = pyarrow.scalar(text, pyarrow.string()).cast(kind.type).as_py()
            except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
                cell = None
            cells[row] = cell
            table = table.set_column(place, kind.name, pyarrow.array(cells, kind.type))
        parquet.write_table(table, file)
