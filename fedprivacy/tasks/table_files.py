"""CSV and Parquet files, read part by part: a column's cells as they stand there, and None where a row is none."""

from __future__ import annotations

import codecs
import csv
import gzip
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from fedprivacy.tasks.cells import Cell, TableError, number, one_by_one
from fedprivacy.tasks.sheet import BROKEN, OPEN_QUOTE, Fault
from fedprivacy.values.cell_text import doubles

ROWS = 2**15
"""Rows that are read at once: memory is bounded by them, and by what is made of all rows."""

_KINDS = ((".csv",), (".csv", ".gz"), (".parquet",))
_DELIMITERS = ";\t|,"
_OTHER_FILES = {
    b"PAR1": "holds Parquet; name it .parquet",
    b"\x1f\x8b": "is compressed by gzip; name it .csv.gz",
    b"PK\x03\x04": "is a spreadsheet or an archive; save the sheet as CSV",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
}
"""First bytes of files that are no CSV, with what to do."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """Some rows of a file.

    Attributes:
        cells: cells by column, None in each where the row has not one for every column.
        faults: reason why a row is none, by its number.
    """

    cells: Mapping[str, Sequence[Cell]]
    faults: Mapping[int, Fault]


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of rows, whose header is public.

    Attributes:
        path: its place.
        columns: names of its columns.
        delimiter, encoding: those of a CSV file.
        floating: names of the columns of floating-point numbers, by a Parquet file's types.
    """

    path: Path
    columns: Sequence[str]
    delimiter: str
    encoding: str
    floating: frozenset[str] = frozenset()

    @classmethod
    def of(cls, path: Path, delimiter: str, encoding: str) -> TableFile:
        """Read a file's header. Raises TableError: there is no such file, or it is of another kind."""
        if not path.is_file():
            raise TableError(f"there is no table '{path}'; name a .csv or .parquet file.")
        if tuple(path.suffixes[-2:]) not in _KINDS and (path.suffix,) not in _KINDS:
            raise TableError(f"'{path}' is no table that can be read; name a .csv, .csv.gz or .parquet file.")
        if path.suffix == ".parquet":
            schema = _opened_parquet(path).schema_arrow
            floating = frozenset(name for name, kind in zip(schema.names, schema.types, strict=True) if _floats(kind))
            return cls(path, schema.names, delimiter, encoding, floating)
        _check_format(delimiter, encoding)
        file = cls(path, (), delimiter, encoding)
        with file._lines() as lines:
            columns = file._header(lines)
        others = _DELIMITERS.replace(delimiter, "")
        if len(columns) == 1 and (seen := next((mark for mark in others if mark in columns[0]), "")):
            raise TableError(f"'{path}' has the one column '{columns[0]}'; give delimiter={seen!r}.")
        return cls(path, columns, delimiter, encoding)

    def check(self, needed: Iterable[str]) -> None:
        """Check that columns are there, each once.

        Raises:
            TableError: a column is missing, or there twice; the error names the columns, which are public.
        """
        for name in needed:
            if self.columns.count(name) > 1:
                raise TableError(
                    f"'{self.path}' has {self.columns.count(name)} columns '{name}'; give each its own name."
                )
            if name not in self.columns and not all(math.isnan(number(column)) for column in self.columns):
                raise TableError(
                    f"'{self.path}' has no column '{name}': its first line holds numbers; let it name the columns."
                )
            if name not in self.columns:
                raise TableError(f"'{self.path}' has no column '{name}'; it has {', '.join(self.columns)}.")

    def parts(self, columns: Sequence[str]) -> Iterator[TablePart]:
        """Yield the rows, each a record; a CSV file has a record on a line. Of Parquet, only some columns are read."""
        return self._parquet_parts(columns) if self.path.suffix == ".parquet" else self._csv_parts()

    def _parquet_parts(self, columns: Sequence[str]) -> Iterator[TablePart]:
        for batch in _opened_parquet(self.path).iter_batches(ROWS, columns=list(columns)):
            yield TablePart({name: _python_cells(batch.column(name)) for name in columns}, {})

    def _csv_parts(self) -> Iterator[TablePart]:
        width = len(self.columns)
        with self._lines() as lines:
            self._header(lines)
            blank = b" \t\r\n".replace(self.delimiter.encode(), b"")
            records = (line for line in lines if width == 1 or line.strip(blank))  # of one column a cell may be empty
            while some := list(islice(records, ROWS)):
                rows: list[Sequence[str | None]] = []
                faults = {}
                for line in some:
                    cells = self._cells(line)
                    if isinstance(cells, Fault) or len(cells) != width:
                        faults[len(rows)] = cells if isinstance(cells, Fault) else BROKEN
                        rows.append([None] * width)
                    else:
                        rows.append(cells)
                yield TablePart(dict(zip(self.columns, zip(*rows, strict=True), strict=True)), faults)

    def _lines(self) -> IO[bytes]:
        return gzip.open(self.path, "rb") if self.path.suffix == ".gz" else self.path.open("rb")  # type: ignore[return-value]

    def _header(self, lines: Iterator[bytes]) -> list[str]:
        """Read the names of the columns from the first line that is not blank, nor Excel's note of the delimiter."""
        filled = (line for line in lines if line.strip())
        first = next(filled, b"").removeprefix(codecs.BOM_UTF8)
        if first.strip(b'"\r\n').lower() == b"sep=" + self.delimiter.encode():
            first = next(filled, b"")
        for start, why in _OTHER_FILES.items():
            if first.startswith(start):
                raise TableError(f"'{self.path}' {why}.")
        header = self._cells(first)
        if isinstance(header, Fault) or not first:
            raise TableError(
                f"'{self.path}' has no header; its first line must name the columns, and end as the others do with a "
                "line feed."
            )
        return [name.strip() for name in header]

    def _cells(self, line: bytes) -> list[str] | Fault:
        """Return the cells of a line, each by itself: a quote that is never closed must not swallow other records."""
        words = line.removesuffix(b"\n").rstrip(b"\r").decode(self.encoding, errors="replace")
        if '"' not in words:
            return BROKEN if "\r" in words else words.split(self.delimiter)
        try:
            return next(csv.reader([words], delimiter=self.delimiter, strict=True))
        except csv.Error:
            return OPEN_QUOTE if words.count('"') % 2 else BROKEN


def _check_format(delimiter: str, encoding: str) -> None:
    if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
        raise TableError(f"delimiter is {delimiter!r}; give one character, such as ';'.")
    try:
        plain = '\n,"'.encode(encoding)
    except LookupError:
        plain = b""
    if plain != b'\n,"':
        raise TableError(f"encoding is {encoding!r}; give 'utf-8', 'latin-1', 'cp1252' or another that extends ASCII.")


def _opened_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise TableError(f"'{path}' needs pyarrow; 'pip install pyarrow', or save it as .csv.") from error
    return parquet.ParquetFile(path)


def _floats(kind: Any) -> bool:
    """Return whether an Arrow type holds floating-point numbers, maybe as categories."""
    return str(kind.value_type if str(kind).startswith("dictionary") else kind) in ("halffloat", "float", "double")


def _python_cells(column: Any) -> list[Cell]:
    """Read cell by cell where need be: a date that Python does not have must not make the others fail.

    Nanoseconds become microseconds: Arrow gives them in types of pandas, and only where that is installed.
    """
    try:
        column = column.dictionary_decode() if str(column.type).startswith("dictionary") else column
        if str(column.type).startswith(("timestamp[ns", "duration[ns")):
            column = column.cast(str(column.type).replace("[ns", "[us"), safe=False)
        if str(column.type) in ("halffloat", "float"):
            return list(doubles(column.to_numpy(zero_copy_only=False)).tolist())
        return list(column.to_pylist())
    except Exception:
        return one_by_one(column, lambda cell: cell.as_py())
