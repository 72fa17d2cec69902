"""Trial of a task's reading of tables: one cell is changed, and every other record must stay as it was.

A reader that looks at a whole column, as pandas does to infer its type, lets one record change all others. Clipping
does not bound that. The trial works on a copy of a few rows, in a temporary folder that only its owner can read. It
finds the usual faults but proves nothing about rows that were not tried.
"""

from __future__ import annotations

import csv
import gzip
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedprivacy._support.random_state import RandomState
from fedprivacy.tasks.cells import TableError
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.tasks.sheet import collecting_sheets
from fedprivacy.tasks.task import Shard, ShardSource, Task

ROWS = 40
"""Maximum number of rows that are copied of each table, from its beginning."""

FEWEST_ROWS = 4
"""Minimum number of whole rows of a table that is tried: two that change, and others that must not."""

MOST_FILES, MOST_BYTES = 1_000, 2**22
"""Maximum number of files in a folder that is tried, and of bytes that are copied beside its table."""

PATIENCE = 10.0
"""Seconds after which no other column is tried; a task may load a tokenizer for each reading."""

LARGE = "a large number"

CELLS: Mapping[str, str] = {
    "a text": "?",
    "nothing": "",
    "NaN": "nan",
    "a fraction": "0.5",
    LARGE: "1000000",
    "a huge number": "1e400",
    "a truth value": "True",
    "a date": "2020-02-30",
}
"""Contents that are written into a cell, by their names in messages."""

READERS = "fedprivacy.load_table and fedprivacy.read_table read each cell by itself"

Row = list[Any]


@dataclass(frozen=True, slots=True)
class Misread:
    """One cell whose change affects more than its own record. It holds no value of a record.

    Attributes:
        file, column: place of the cell.
        cell: content written there, in words.
        what: effect on the other records.
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
        columns: number of columns that were tried, of all tables.
        left: number of columns that were not tried for lack of time.
        misread: first misread cell of each column that fails.
        untried: reason why nothing could be tried; empty: something was.
    """

    columns: int = 0
    left: int = 0
    misread: tuple[Misread, ...] = ()
    untried: str = ""


def try_cells(task: Task, folder: Path, patience: float = PATIENCE) -> Trial:
    """Change one cell after another in a copy of the folder's tables, and read shard and table each time.

    Args:
        task: task that reads `ShardSource(folder=...)`.
        folder: a data owner's folder; nothing is written there.
        patience: time limit in seconds.
    """
    entries = sorted(folder.iterdir())
    if len(entries) > MOST_FILES:
        return Trial(untried=f"{folder} holds more than {MOST_FILES} files")
    tables = {file: table for file in entries if (table := _open_table(file)) is not None}
    if not tables:
        return Trial(untried=f"{folder} holds no .csv and no .parquet file with {FEWEST_ROWS} rows")
    ends, tried, left, misread = time.monotonic() + patience, 0, 0, list[Misread]()
    told, untried = False, list[str]()
    before = RandomState.now()
    try:
        for file, table in tables.items():
            trial = _Reader(open_task(task=task), file, table)
            if why := trial.why_unsuited():
                untried.append(f"{why} of {file.name}{trial.refusal}")
                continue
            for column in (place for place, name in enumerate(table.columns) if name not in trial.owners):
                if tried and time.monotonic() > ends:  # one column is always tried
                    left += 1
                    continue
                tried += 1
                found = [Misread(file.name, table.columns[column], *change) for change in trial.changes(column)]
                misread += found[:1]
            told = told or trial.told
    finally:
        before.restore()
    if told or misread:
        return Trial(tried, left, tuple(misread))
    return Trial(untried="; ".join(untried) or f"the task reads no cell of {', '.join(file.name for file in tables)}")


class _Reading(NamedTuple):
    """Records of the shard and of the table, each as bytes; and their number, if that is public."""

    records: tuple[Counter[bytes], Counter[bytes]]
    size: int


@dataclass(slots=True)
class _Reader:
    """A task together with one table of which it reads copies.

    Attributes:
        told: whether any cell has changed anything; otherwise the task does not read this table.
        refusal: words of a reader that refuses the table, which hold no cell; empty: none does.
        owners: columns that tell whose a row is. They say which rows are one record, and are no record's content, so
            they are not changed.
    """

    task: OpenedTask
    file: Path
    table: _Csv | _Parquet
    told: bool = False
    refusal: str = ""
    owners: set[str] = field(default_factory=set)
    _usual_parts: bytes | None = None
    _own: dict[tuple[int, int], bytes] = field(default_factory=dict)  # the record of a row, in shard and table

    def why_unsuited(self) -> str:
        """Explain why nothing can be tried, in words that "of" can follow; empty if something can."""
        rows = self.table.rows
        one, other = self._read(rows), self._read(rows)
        parts, again = self._parts(rows), self._parts(rows)
        self._usual_parts = parts if parts == again else None
        if one is None or other is None:
            return "the task does not read a copy"
        return "" if one == other else "the task draws random numbers, or reads something else each time, in a copy"

    def changes(self, column: int) -> Iterator[tuple[str, str]]:
        """Yield each content of a cell that changes more than its own record, with its effect on the others.

        Some faults show only where another cell is missing, or where two rows are alike.
        """
        rows, (middle, last) = self.table.rows, self.table.rows_tried
        elsewhere = self._with(rows, self.table.whole[0], column, "nothing") or rows
        alike = [*rows[:last], list(rows[middle]), *rows[last + 1 :]]
        for start, cells in ((rows, tuple(CELLS)), (elsewhere, (LARGE,)), (alike, (LARGE, "a text"))):
            usual = self._read(start)
            for row in (middle, last) if usual is not None else ():
                for cell in cells:
                    if what := self._change(usual, start, row, column, cell):
                        yield cell, what
        usual = self._read(rows)
        for cell, other in self.table.retyped_tables(column, middle):
            now = self._read(other.rows, other)
            if now is not None and usual is not None and (what := self._effect(usual, now, middle, rows)):
                yield cell, what  # a reader may refuse a type, which is public
        large = self._with(rows, middle, column, LARGE)
        if large and self._usual_parts is not None and self._usual_parts != self._parts(large):
            yield LARGE, "what the model or the loss computes of any record changes"

    def _change(self, usual: _Reading | None, start: Sequence[Row], row: int, column: int, cell: str) -> str:
        """Describe the effect on other records; empty if there is none."""
        changed = self._with(start, row, column, cell)
        if changed is None:
            return ""
        now = self._read(changed)
        if now is None or usual is None:
            return "reading fails for everybody"
        return self._effect(usual, now, row, start)

    def _effect(self, usual: _Reading, now: _Reading, row: int, rows: Sequence[Row]) -> str:
        self.told = self.told or now != usual
        for place, (before, after) in enumerate(zip(usual.records, now.records, strict=True)):
            gone = list((before - after).elements())
            if len(gone) > 1:
                return "other records change"
            if gone and rows is self.table.rows and self._own.setdefault((row, place), gone[0]) != gone[0]:
                return "another record changes than by another cell of the row"
        return "" if now.size == usual.size else "the number of records, which is public, changes"

    def _with(self, rows: Sequence[Row], row: int, column: int, cell: str) -> list[Row] | None:
        """Change one cell of the rows; None if its column cannot hold the content."""
        changed = list(rows[row])
        try:
            changed[column] = self.table.cell(column, CELLS[cell])
        except ValueError:
            return None
        return [*rows[:row], changed, *rows[row + 1 :]]

    def _read(self, rows: Sequence[Row], written: _Csv | _Parquet | None = None) -> _Reading | None:
        """Read a copy of the folder with these rows in the table, maybe of other types; None if the task fails."""
        with TemporaryDirectory() as made:
            self._copy(Path(made), rows, written)
            try:
                with collecting_sheets() as sheets:
                    shard, table = self._records(Path(made))
            except Exception as error:  # its text may hold values, but for a reader's own
                self.refusal = f" ({str(error).rstrip('.')})" if isinstance(error, TableError) else ""
                return None
        self.owners |= sheets.owners
        asked = Counter[bytes]() if table is None else _cells(table)
        return _Reading((_bytes_of(shard), asked), len(shard) if self.task.shard_sizes_public else 0)

    def _copy(self, copy: Path, rows: Sequence[Row], written: _Csv | _Parquet | None = None) -> None:
        """Copy the table with these rows, and small files beside it, into a folder where the task may write."""
        left = MOST_BYTES
        for other in sorted(self.file.parent.iterdir()):
            if other.name != self.file.name and other.is_file() and other.stat().st_size <= left:
                left -= other.stat().st_size
                shutil.copyfile(other, copy / other.name)
        (written or self.table).write(copy / self.file.name, rows)

    def _records(self, copy: Path) -> tuple[Shard, Table | None]:
        source = ShardSource(folder=copy)
        shard = self.task.shard(source)
        return shard, self.task.table(source) if self.task.offers("table") else None

    def _parts(self, rows: Sequence[Row]) -> bytes | None:
        """Return the state of a new model and its losses on made-up records, after these rows were read; None if that
        fails.
        """
        with TemporaryDirectory() as made:
            self._copy(Path(made), rows)
            try:
                with collecting_sheets():
                    shard, _ = self._records(Path(made))
                torch.manual_seed(0)
                model = self.task.model()
                inputs, targets = (part.new_ones(2, *part.shape[1:]) for part in (shard.inputs, shard.targets))
                with torch.no_grad():
                    losses = self.task.loss(model(inputs), targets)
            except Exception:  # unrelated to the rows: the checks of model and loss report it
                return None
        return b"".join(map(_bytes, [*model.state_dict().values(), losses]))


def _bytes_of(shard: Shard) -> Counter[bytes]:
    """Return shape, type and values of each record, with their counts."""
    kinds = [f"{rows.shape[1:]} {rows.dtype} ".encode() for rows in (shard.inputs, shard.targets)]
    pairs = zip(shard.inputs.cpu(), shard.targets.cpu(), strict=True)
    return Counter(b"".join(k + _bytes(v) for k, v in zip(kinds, pair, strict=True)) for pair in pairs)


def _bytes(values: Tensor) -> bytes:
    """Return the bytes of a tensor of any type."""
    plain = values.detach().cpu().clone(memory_format=torch.contiguous_format)
    flat: bytes = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return flat


def _cells(table: Table) -> Counter[bytes]:
    """Return the numbers and texts of each row, with their counts."""
    read = [zip(table.numbers(column), table.texts(column), strict=True) for column in table.columns]
    return Counter(repr([(number.tobytes(), text) for number, text in row]).encode() for row in zip(*read, strict=True))


def _open_table(file: Path) -> _Csv | _Parquet | None:
    """Open a table with a few rows of a file; None: it is no table, or has too few rows."""
    try:
        text = file.suffix == ".csv" or file.suffixes[-2:] == [".csv", ".gz"]
        table = _Csv.of(file) if text else _Parquet.of(file) if file.suffix == ".parquet" else None
    except Exception:  # the task's own reading reports the problem
        return None
    return table if table is not None and len(table.whole) >= FEWEST_ROWS else None


def _opener(file: Path) -> Callable[..., Any]:
    return gzip.open if file.suffix == ".gz" else open


@dataclass(frozen=True, slots=True)
class _Few:
    """A few rows of a table, each a list of cells."""

    columns: Sequence[str]
    rows: Sequence[Row]

    @property
    def whole(self) -> list[int]:
        """Places of rows with a cell for every column."""
        return [place for place, row in enumerate(self.rows) if len(row) == len(self.columns)]

    @property
    def rows_tried(self) -> tuple[int, int]:
        """Places of the two rows whose cells are changed, the later one last."""
        return self.whole[len(self.whole) // 2], self.whole[-1]


@dataclass(frozen=True, slots=True)
class _Csv(_Few):
    delimiter: str

    @classmethod
    def of(cls, file: Path) -> _Csv:
        with _opener(file)(file, "rt", encoding="utf-8-sig", errors="replace", newline="") as opened:
            delimiter = max(",;\t|", key=opened.readline(MOST_BYTES).count)
            opened.seek(0)
            columns, *rows = islice(csv.reader(opened, delimiter=delimiter), ROWS + 1)
        return cls(columns, rows, delimiter)

    def cell(self, column: int, text: str) -> str:
        return text

    def retyped_tables(self, column: int, row: int) -> Iterator[tuple[str, _Csv]]:
        """Yield nothing: a CSV file has no types."""
        yield from ()

    def write(self, file: Path, rows: Sequence[Row]) -> None:
        with _opener(file)(file, "wt", newline="") as opened:
            csv.writer(opened, delimiter=self.delimiter, lineterminator="\n").writerows([self.columns, *rows])


@dataclass(frozen=True, slots=True)
class _Parquet(_Few):
    """A Parquet table with the file's types: a cell that its column cannot hold becomes missing, if that is allowed."""

    schema: Any

    @classmethod
    def of(cls, file: Path) -> _Parquet:
        from pyarrow import parquet

        opened = parquet.ParquetFile(file)
        batch = next(opened.iter_batches(ROWS))
        rows = [list(row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
        return cls(opened.schema_arrow.names, rows, opened.schema_arrow)

    def cell(self, column: int, text: str) -> Any:
        import pyarrow

        kind = self.schema.field(column)
        try:
            return pyarrow.scalar(text, pyarrow.string()).cast(kind.type).as_py()
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
            if kind.nullable:
                return None
            raise ValueError("the column cannot hold it") from None

    def retyped_tables(self, column: int, row: int) -> Iterator[tuple[str, _Parquet]]:
        """Yield the table as a data frame would write it for the sake of one cell, with the change in words."""
        import pyarrow as pa

        cells, kind = [each[column] for each in self.rows], self.schema.field(column).type
        gap = [*cells[:row], None, *cells[row + 1 :]]
        texts = [None if cell is None else str(cell) for cell in cells]
        units = ("s", "ms", "us", "ns") if pa.types.is_timestamp(kind) else ()
        for words, changed, other in (
            ("nothing (which makes floats of its column)", gap, pa.float64() if pa.types.is_integer(kind) else kind),
            ("nothing (and categories of its column)", gap, pa.dictionary(pa.int32(), kind)),
            *((f"nothing (and times in {unit} of its column)", gap, pa.timestamp(unit, kind.tz)) for unit in units),
            (
                "a text (which makes texts of its column)",
                [*texts[:row], CELLS["a text"], *texts[row + 1 :]],
                pa.string(),
            ),
        ):
            try:
                if other == kind or pa.array(changed, other).to_pylist() != changed:
                    continue
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                continue  # no data frame could write it so
            rows = [[*each[:column], cell, *each[column + 1 :]] for each, cell in zip(self.rows, changed, strict=True)]
            yield words, _Parquet(self.columns, rows, self.schema.set(column, pa.field(self.columns[column], other)))

    def write(self, file: Path, rows: Sequence[Row]) -> None:
        import pyarrow
        from pyarrow import parquet

        columns = [
            pyarrow.array(cells, self.schema.field(place).type) for place, cells in enumerate(zip(*rows, strict=True))
        ]
        parquet.write_table(pyarrow.Table.from_arrays(columns, schema=self.schema), file)
