"""CSV and Parquet files as shards and as tables; each row is read by public constants and by nothing else.

Formal guarantee: the values read from a row depend on the arguments, which are public, and on the row itself; types and
shapes depend on the arguments alone. No row changes another, or makes reading fail: an unreadable row becomes a null
row, and an unreadable cell an empty one. Levels, centres and scales are given, and never looked up in the records.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.tasks.bundled import DirichletSplit
from fedprivacy.tasks.cells import Cell, Levels, TableError, is_empty, number, one_by_one
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.task import Shard, ShardSource

Cells = list[Mapping[str, Cell] | None]
"""Cells of every row, by column; None: the row has too many or too few cells."""


@dataclass(frozen=True, slots=True)
class Number:
    """A column of numbers: (value - centre) / scale, both public constants, clipped at `limit` on both sides.

    >>> import fedprivacy as fp
    >>> fp.Number(centre=60, scale=15, limit=3).inputs("90")
    [2.0]

    Attributes:
        centre, scale, limit: see above.
        missing: value of an empty cell, before scaling; None: the row cannot be read.
    """

    centre: float = 0.0
    scale: float = 1.0
    limit: float = math.inf
    missing: float | None = None

    def inputs(self, cell: Cell) -> list[float]:
        """Return one number; NaN where the cell holds none."""
        value = self.missing if self.missing is not None and is_empty(cell) else number(cell)
        scaled = (value - self.centre) / self.scale
        return [min(max(scaled, -self.limit), self.limit) if math.isfinite(scaled) else math.nan]


@dataclass(frozen=True)
class Category:
    """A column of categories, one-hot in the order of the given levels.

    >>> import fedprivacy as fp
    >>> fp.Category(["f", "m"]).inputs("m")
    [0.0, 1.0]

    Attributes:
        levels: public levels.
        missing: level of an empty cell; None: the row cannot be read, as with a level that is not given.
    """

    levels: Sequence[object]
    missing: object = None

    def inputs(self, cell: Cell) -> list[float]:
        """Return a 1 and zeros; NaN where the cell holds none of the levels."""
        found = self._known.place(self.missing if self.missing is not None and is_empty(cell) else cell)
        return [math.nan if found is None else float(found == place) for place in range(len(self.levels))]

    @cached_property
    def _known(self) -> Levels:
        return Levels(self.levels)


class Split(Protocol):
    """Rule by which a simulation gives each client its part of one table."""

    def rows(self, cells: Cells, targets: NDArray[Any], num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each part.

        Args:
            cells: the rows.
            targets: target of every row; empty if a table is read without naming them.
            num_partitions: number of parts.
        """
        ...

    def describe(self, num_partitions: int) -> str:
        """Return the split's name, for `Task.partition`: it differs whenever the split does."""
        ...


@dataclass(frozen=True)
class ByColumn:
    """Split with a client for each given value of a column, such as hospitals; other rows belong to nobody.

    >>> import fedprivacy as fp
    >>> fp.ByColumn("hospital", ["a", "b"]).describe(2)
    'by hospital: a, b'
    """

    column: str
    levels: Sequence[object]

    def rows(self, cells: Cells, targets: NDArray[Any], num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each level's rows.

        Raises:
            TableError: there are not as many levels as parts.
        """
        if num_partitions != len(self.levels):
            raise TableError(
                f"{self.column} splits the table into {len(self.levels)} parts, and there are {num_partitions} "
                f"clients; set clients to {len(self.levels)}."
            )
        found = Levels(self.levels).codes([row.get(self.column) if row else None for row in cells])
        return [np.flatnonzero(found == part) for part in range(num_partitions)]

    def describe(self, num_partitions: int) -> str:
        """Return the split's name."""
        return f"by {self.column}: {', '.join(map(str, self.levels))}"


@dataclass(frozen=True, slots=True)
class Evenly:
    """Split into parts of equal size, drawn at random (IID).

    >>> import fedprivacy as fp
    >>> fp.Evenly(seed=1).describe(4)
    '4 even parts, seed 1'
    """

    seed: int = 0

    def rows(self, cells: Cells, targets: NDArray[Any], num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each part."""
        return np.array_split(np.random.default_rng(self.seed).permutation(len(cells)), num_partitions)

    def describe(self, num_partitions: int) -> str:
        """Return the split's name."""
        return f"{num_partitions} even parts, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class ByDirichlet:
    """Split into parts with different mixes of classes; see `fedprivacy.tasks.bundled.DirichletSplit`.

    >>> import fedprivacy as fp
    >>> fp.ByDirichlet(alpha=0.5).describe(4)
    '4 parts, Dirichlet alpha 0.5, seed 0'
    """

    alpha: float
    seed: int = 0
    smallest_shard: int = 1

    def rows(self, cells: Cells, targets: NDArray[Any], num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each part.

        Raises:
            TableError: the targets were not named.
        """
        if len(targets) < len(cells):
            raise TableError("ByDirichlet splits by the target; name target and classes as for the shard.")
        return self._split().rows(targets, num_partitions)

    def describe(self, num_partitions: int) -> str:
        """Return the split's name."""
        return self._split().describe(num_partitions)

    def _split(self) -> DirichletSplit:
        return DirichletSplit(self.alpha, self.smallest_shard, self.seed)


def load_table(
    path: str | Path,
    *,
    target: str,
    features: Sequence[str] | Mapping[str, Number | Category] | None = None,
    classes: Sequence[object] | None = None,
    only: Mapping[str, object] | None = None,
    split: Split | None = None,
    source: ShardSource | None = None,
) -> Shard:
    """Read a CSV (UTF-8, with a header, a record a line) or Parquet file as a shard.

    >>> import fedprivacy as fp
    >>> from pathlib import Path
    >>> text = "age,sex,ill\\n70,f,1\\n50,m,0\\n?,f,1\\n"
    >>> _ = Path("people.csv").write_text(text)
    >>> features = {"age": fp.Number(60, 10), "sex": fp.Category(["f", "m"])}
    >>> fp.load_table("people.csv", target="ill", classes=[0, 1], features=features).inputs
    tensor([[ 1.,  1.,  0.],
            [-1.,  0.,  1.],
            [nan, nan, nan]])

    Formal guarantee: see this module.

    Args:
        path: file whose name ends with .csv or .parquet.
        target: column to predict.
        features: columns of the inputs, in this order: numbers as they are, or a reader for each. None: every other
            column, as numbers.
        classes: values of the target, which become 0, 1, ...; None: it is a number. The target of an unreadable row
            is 0.
        only: values by column that select rows, for example a public test set. The number of selected rows depends on
            their content: with public shard sizes, name nothing that a private row could change.
        split: split of a simulation, which gives each client its part of the rows; None: all rows.
        source: the argument of `Task.shard`, which names the part.

    Raises:
        TableError: there is no such file or column, it is of another kind, or it cannot be split as asked.
    """
    columns, rows = _rows(Path(path))
    if not isinstance(features, Mapping):
        features = {name: Number() for name in features or columns if features or name != target}
    _check_columns(path, columns, (target, *features, *(only or ())))
    cells = _selected(rows, only)
    labels = _labels(cells, target, classes)
    targets = _targets(labels, classes)
    width = sum(len(feature.inputs(None)) for feature in features.values())
    inputs = np.full((len(cells), width), np.nan, np.float32)
    for place, (row, label) in enumerate(zip(cells, labels, strict=True)):
        if row is not None and label is not None:
            inputs[place] = _inputs(row, features)
    mine = _part(cells, targets, split, source)
    if mine is not None:
        inputs, targets = inputs[mine], targets[mine]
    return Shard(torch.from_numpy(inputs), torch.from_numpy(targets))  # null where nothing could be read


def read_table(
    path: str | Path,
    *,
    only: Mapping[str, object] | None = None,
    split: Split | None = None,
    source: ShardSource | None = None,
    target: str | None = None,
    classes: Sequence[object] | None = None,
) -> Table:
    """Read a CSV (UTF-8, with a header, a record a line) or Parquet file by column, for questions.

    >>> import fedprivacy as fp
    >>> from pathlib import Path
    >>> _ = Path("people.csv").write_text("age,sex\\n70,f\\n50\\n?,m\\n")
    >>> table = fp.read_table("people.csv")
    >>> table.numbers("age"), table.texts("sex")
    (array([70., nan, nan]), ['f', '', 'm'])

    Formal guarantee: see this module. A row with too many or too few cells is a record as well, of which nothing can be
    read: without `only`, the number of records depends on the number of rows alone.

    Args:
        path: file whose name ends with .csv or .parquet.
        only: values by column that select rows. The number of selected rows depends on their content.
        split: split of a simulation, the same as the shard's: each client gets the same rows of the file.
        source: the argument of `Task.table`, which names the part.
        target, classes: those of the shard, if the split uses them, as `ByDirichlet` does; otherwise not needed.

    Raises:
        TableError: there is no such file or column, it is of another kind, or it cannot be split as asked.
    """
    columns, rows = _rows(Path(path))
    _check_columns(path, columns, (*([] if target is None else [target]), *(only or ())))
    cells = _selected(rows, only)
    targets = np.empty(0) if target is None else _targets(_labels(cells, target, classes), classes)
    mine = _part(cells, targets, split, source)
    if mine is not None:
        cells = [cells[place] for place in mine]
    return Table({name: [row.get(name) if row else None for row in cells] for name in columns})


def _check_columns(path: str | Path, columns: Sequence[str], needed: Iterable[str]) -> None:
    for name in needed:
        if name not in columns:
            raise TableError(f"'{path}' has no column '{name}'; it has {', '.join(columns)}.")


def _selected(cells: Cells, only: Mapping[str, object] | None) -> Cells:
    """Select the rows with these values in these columns."""
    for column, value in (only or {}).items():
        known = Levels([value])
        cells = [row for row in cells if row and known.place(row.get(column)) is not None]
    return cells


def _part(
    cells: Cells, targets: NDArray[Any], split: Split | None, source: ShardSource | None
) -> NDArray[np.int64] | None:
    """Return the numbers of the rows that a simulated client has; None: it has all of them."""
    if split is None or source is None or source.partition_id is None:
        return None
    return split.rows(cells, targets, source.num_partitions or 1)[source.partition_id]


def _inputs(row: Mapping[str, Cell], features: Mapping[str, Number | Category]) -> NDArray[np.float32] | float:
    """Return the inputs of a readable row; NaN if one of them cannot be read."""
    with np.errstate(over="ignore"):  # the value is then infinite
        values = np.array([x for name, each in features.items() for x in each.inputs(row.get(name))], np.float32)
    return values if np.isfinite(values).all() else math.nan


def _labels(cells: Cells, target: str, classes: Sequence[object] | None) -> list[float | None]:
    """Read the target of each row; None: it has none."""
    read = _finite if classes is None else Levels(classes).place
    return [read(row.get(target)) if row else None for row in cells]


def _finite(cell: Cell) -> float | None:
    value = number(cell)
    return value if abs(value) <= np.finfo(np.float32).max else None


def _targets(labels: Sequence[float | None], classes: Sequence[object] | None) -> NDArray[Any]:
    """Return the labels as an array, 0 where a row has none."""
    return np.array([0 if label is None else label for label in labels], np.float32 if classes is None else np.int64)


def _rows(path: Path) -> tuple[list[str], Cells]:
    """Read a file: its columns, and its rows by column."""
    if not path.is_file():
        raise TableError(f"there is no table '{path}'; name a .csv or .parquet file.")
    if path.suffix == ".csv":
        return _csv(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    raise TableError(f"'{path}' is no table that can be read; name a .csv or .parquet file.")


def _parquet(path: Path) -> tuple[list[str], Cells]:
    """Read cell by cell: a date that Python does not have, or an invalid text, must not make the others fail."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise TableError(f"'{path}' needs pyarrow; 'pip install pyarrow', or save it as .csv.") from error
    table = parquet.read_table(path)
    columns = [one_by_one(column, lambda cell: cell.as_py()) for column in table.columns]
    return table.column_names, [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _csv(path: Path) -> tuple[list[str], Cells]:
    """Read line by line: a quote that is never closed must not swallow the records after it."""
    first, *lines = path.read_bytes().lstrip().removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    header = _parsed(first)
    if not header:
        raise TableError(f"'{path}' has no header; its first line must name the columns.")
    columns = [name.strip() for name in header]
    only_one = len(columns) == 1  # a blank line is then a record with an empty cell
    rows = (_parsed(line) for line in lines if only_one or line.strip())
    whole = (row if row and len(row) == len(columns) else None for row in rows)
    return columns, [dict(zip(columns, row, strict=True)) if row else None for row in whole]


def _parsed(line: bytes) -> list[str] | None:
    try:
        return next(csv.reader([line.rstrip(b"\r").decode(errors="replace")]))
    except csv.Error:
        return None
