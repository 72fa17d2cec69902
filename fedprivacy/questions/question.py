"""What a question is: from a client's records to a vector of whole numbers, and from the noisy vector to figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.conditions import Condition, OneOf, Rows, as_conditions, groups_of, some_text
from fedprivacy.questions.errors import QuestionError, settle
from fedprivacy.questions.figures import Figure, Noisy
from fedprivacy.tasks.columns import Table

Totals = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Question(ABC):
    """One question about a client's records.

    Formal guarantee. What a subclass makes of some records is a sum over them of one vector of whole numbers each. The
    vector depends on the record and on the question alone, and its squared Euclidean norm is at most
    `squared_sensitivity`. A record is in one group at most. So the totals of two tables, of which one has one record
    more, differ by a vector of at most that squared norm; and so they do where a null record, of which every cell is
    empty, takes a record's place: its vector is zero, but for that of a count of all records, which has it of every
    record. All of it is computed in whole numbers, so this holds exactly.

    Two questions that ask the same are equal: numbers, levels and conditions are kept in one form, and conditions in
    one order. The order of columns, of levels and of groups is that of the figures.

    Attributes:
        where: conditions, all of which a record must meet.
        by: groups, each of which is answered for itself; None: all records together.
    """

    kind: ClassVar[str]
    where: tuple[Condition, ...] = ()
    by: OneOf | None = None

    def __post_init__(self) -> None:
        settle(self, where=as_conditions(self.where))
        if not isinstance(self.by, OneOf | None):
            raise QuestionError(f"by is a {type(self.by).__name__}; give a OneOf, or None.")

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The columns whose cells enter the vectors."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers in the vector of one group."""

    @property
    @abstractmethod
    def squared_sensitivity(self) -> int:
        """Largest squared norm of one record's vector, in squared lattice steps."""

    @abstractmethod
    def summed(self, rows: Rows) -> Totals:
        """The sum of the vectors of some records, shape [width]."""

    @abstractmethod
    def records(self, noisy: Noisy) -> float:
        """Estimate of how many records were summed."""

    @property
    @abstractmethod
    def per_count(self) -> float:
        """Standard error of a number of records in the figures, in deviations of the noise."""

    @abstractmethod
    def figures(self, noisy: Noisy) -> list[Figure]:
        """What noisy totals say."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The question, for people: "mean of age"."""

    @property
    def sentence(self) -> str:
        """The same with whose records it is about: "mean of age, where sex is f, by ward (a, b)"."""
        parts = [self.words]
        if self.where:
            parts.append(f"where {' and '.join(condition.words for condition in self.where)}")
        if self.by:
            parts.append(f"by {self.by.column} ({some_text(self.by.levels, ', ')})")
        return ", ".join(parts)

    @property
    def columns(self) -> frozenset[str]:
        """Every column that it looks at, its conditions and groups included."""
        looked_at = [condition.column for condition in (*self.where, *([self.by] if self.by else []))]
        return frozenset((*self.reads, *looked_at))

    @property
    def groups(self) -> Sequence[str]:
        """The groups' names; one empty name where there are none."""
        return [str(level) for level in self.by.levels] if self.by else [""]

    def totals(self, table: Table) -> Totals:
        """The sum of all records' vectors, shape [groups, width].

        Raises:
            TableError: the table lacks a column.
        """
        with np.errstate(all="ignore"):  # no record's numbers warn, or raise where the host has told numpy to
            return np.stack([self.summed(rows) for rows in groups_of(table, self.where, self.by)])
