"""Base of questions: from a client's records to a vector of whole numbers, and from the noisy vector to figures."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedprivacy.questions.arguments import QuestionError, settle
from fedprivacy.questions.conditions import ChosenRecords, Condition, OneOf, as_conditions, groups_of, some_text
from fedprivacy.questions.figures import Estimate, Noisy
from fedprivacy.questions.lattice import Totals
from fedprivacy.tasks.columns import Table
from fedprivacy.values.unit import RECORD


@dataclass(frozen=True, kw_only=True)
class Question(ABC):
    """One question about a client's records.

    Formal guarantee. A subclass sums one vector of whole numbers over records. The vector depends on the record and on
    the question alone, and its squared Euclidean norm is at most `squared_sensitivity`. A record is in at most one
    group. So the totals of two tables, of which one has one record more, differ by a vector of at most that squared
    norm. The same holds if a null record, whose cells are all empty, replaces a record: it contributes zero, except to
    an unconditional count, which counts every record alike. All of it is computed in whole numbers, so this holds
    exactly.

    Questions with the same meaning are equal: numbers, levels and conditions have a canonical form, and conditions a
    canonical order. The order of columns, of levels and of groups is that of the figures.

    Attributes:
        where: conditions, all of which a record must meet.
        by: groups that are answered separately; None: all records together.
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
        """Columns whose cells enter the vectors."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Length of the vector of one group."""

    @property
    @abstractmethod
    def squared_sensitivity(self) -> int:
        """Largest squared norm of one record's vector, in squared lattice steps."""

    @abstractmethod
    def sum_records(self, rows: ChosenRecords) -> Totals:
        """Sum the vectors of some records, shape [width]."""

    @abstractmethod
    def records(self, noisy: Noisy) -> float:
        """Estimate the number of records that were summed."""

    @property
    @abstractmethod
    def per_count(self) -> float:
        """Standard error of a number of records in the figures, in deviations of the noise."""

    @abstractmethod
    def figures(self, noisy: Noisy) -> list[Estimate]:
        """Compute the figures of noisy totals."""

    @abstractmethod
    def words_of(self, unit: str) -> str:
        """Return the question for people: "number of patients", where `unit` is the task's word for a record."""

    @property
    def words(self) -> str:
        """The question for people: "number of records"."""
        return self.words_of(RECORD.name)

    @property
    def sentence(self) -> str:
        """The question with the records that it is about: "mean of age, where sex is f, by ward (a, b)"."""
        return self.sentence_of(RECORD.name)

    def sentence_of(self, unit: str) -> str:
        """Return the sentence of a task whose word for a record is `unit`."""
        parts = [self.words_of(unit)]
        if self.where:
            parts.append(f"where {' and '.join(condition.words for condition in self.where)}")
        if self.by:
            parts.append(f"by {self.by.column} ({some_text(self.by.levels, ', ')})")
        return ", ".join(parts)

    @property
    def columns(self) -> frozenset[str]:
        """Every column that the question reads, its conditions and groups included."""
        looked_at = [condition.column for condition in (*self.where, *([self.by] if self.by else []))]
        return frozenset((*self.reads, *looked_at))

    @property
    def groups(self) -> Sequence[str]:
        """Names of the groups; one empty name if there are none."""
        return [str(level) for level in self.by.levels] if self.by else [""]

    def as_text(self) -> str:
        """Write the question as its only text: JSON in ASCII, sorted, without spaces.

        It is what a grant's signature covers, and by which a ledger finds the answers that it keeps.

        >>> import fedprivacy as fp
        >>> fp.ask.mean("age", 0, 120).as_text()
        '{"by":null,"kind":"mean","of":[{"column":"age","high":120.0,"low":0.0}],"where":[]}'
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {"kind": self.kind}
        return json.dumps(fields, default=dataclasses.asdict, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def totals(self, table: Table) -> Totals:
        """Sum all records' vectors, shape [groups, width]. Raises TableError: the table lacks a column."""
        with np.errstate(all="ignore"):  # no record's numbers warn, or raise where the host has told numpy to
            return np.stack([self.sum_records(rows) for rows in groups_of(table, self.where, self.by)])
