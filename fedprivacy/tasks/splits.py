"""Splits of one table over the clients of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedprivacy.tasks.bundled import DirichletSplit
from fedprivacy.tasks.cells import PLAIN, Cell, Levels, Notation, TableError, list_of


@dataclass(frozen=True, slots=True)
class Splittable:
    """The rows of a table, as far as a split looks at them.

    Attributes:
        cells: cells of the columns that the split reads, by column.
        targets: target of every row, shape [rows]; empty if a table is read without naming them.
        persons: number of each row's person, shape [rows], from 0 on in the order of their first rows.
        notation: how the cells are written.
    """

    cells: Mapping[str, Sequence[Cell]]
    targets: NDArray[Any]
    persons: NDArray[np.int64]
    notation: Notation = PLAIN

    def rows_of_persons(self, parts: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Return the row numbers of each part, given its persons: all rows of each, in the order of the persons."""
        by_person = np.argsort(self.persons, kind="stable")
        counts = np.bincount(self.persons, minlength=self.number_of_persons)
        ends = counts.cumsum()
        return [
            by_person[np.repeat(ends[part] - counts[part].cumsum(), counts[part]) + np.arange(counts[part].sum())]
            for part in parts
        ]

    @property
    def number_of_persons(self) -> int:
        """Number of persons; of rows, where each is one."""
        return int(self.persons.max(initial=-1)) + 1


class Split(Protocol):
    """Rule by which a simulation gives each client its part of one table."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns whose cells the rule looks at."""
        ...

    def rows(self, table: Splittable, num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each part.

        Args:
            table: the rows.
            num_partitions: number of parts.
        """
        ...

    def describe(self, num_partitions: int) -> str:
        """Return the split's name, for `Task.partition`: it differs whenever the split does."""
        ...


@dataclass(frozen=True)
class ByColumn:
    """Split with a client for each given value of a column, such as hospitals; other rows belong to nobody.

    A person with rows at two hospitals is at two clients. Each then protects its own rows of that person, as in a
    deployment; what both have released of the person adds up.

    >>> import fedprivacy as fp
    >>> fp.ByColumn("hospital", ["a", "b"]).describe(2)
    'by hospital: a, b'

    Raises:
        TableError: a level is no text or number; or a cell could match two of the levels, or can match none of them.
    """

    column: str
    levels: Sequence[object]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", list_of("levels", self.levels))
        Levels(self.levels)

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def rows(self, table: Splittable, num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each level's rows.

        Raises:
            TableError: there are not as many levels as parts.
        """
        if num_partitions != len(self.levels):
            raise TableError(
                f"{self.column} splits the table into {len(self.levels)} parts, and there are {num_partitions} "
                f"clients; set clients to {len(self.levels)}."
            )
        found = Levels(self.levels, table.notation).codes(table.cells[self.column])
        return [np.flatnonzero(found == part) for part in range(num_partitions)]

    def describe(self, num_partitions: int) -> str:
        """Return the split's name."""
        return f"by {self.column}: {', '.join(map(str, self.levels))}"


@dataclass(frozen=True, slots=True)
class Evenly:
    """Split into parts of equal size, drawn at random (IID). A person's rows stay together.

    >>> import fedprivacy as fp
    >>> fp.Evenly(seed=1).describe(4)
    '4 even parts, seed 1'
    """

    seed: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        """No column."""
        return ()

    def rows(self, table: Splittable, num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each part."""
        order = np.random.default_rng(self.seed).permutation(table.number_of_persons)
        return table.rows_of_persons(np.array_split(order, num_partitions))

    def describe(self, num_partitions: int) -> str:
        """Return the split's name."""
        return f"{num_partitions} even parts, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class ByDirichlet:
    """Split into parts with different mixes of classes; see `fedprivacy.tasks.bundled.DirichletSplit`.

    A person's rows stay together; the person's class is that of the first of them. With a small alpha and many clients
    some get no record: a warning says how many.

    >>> import fedprivacy as fp
    >>> fp.ByDirichlet(alpha=0.5).describe(4)
    '4 parts, Dirichlet alpha 0.5, seed 0'
    """

    alpha: float
    seed: int = 0
    smallest_shard: int = 1

    @property
    def reads(self) -> tuple[str, ...]:
        """No column."""
        return ()

    def rows(self, table: Splittable, num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of each part.

        Raises:
            TableError: the targets were not named.
        """
        if len(table.targets) < len(table.persons):
            raise TableError("ByDirichlet splits by the target; name target and classes as for the shard.")
        firsts = np.unique(table.persons, return_index=True)[1]
        return table.rows_of_persons(self._split().rows(table.targets[firsts], num_partitions))

    def describe(self, num_partitions: int) -> str:
        """Return the split's name."""
        return self._split().describe(num_partitions)

    def _split(self) -> DirichletSplit:
        return DirichletSplit(self.alpha, self.smallest_shard, self.seed)
