"""How many records' texts begin in which way: a histogram over public beginnings, of texts that nobody need list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fedprivacy.questions.conditions import LONGEST_LEVEL, Rows
from fedprivacy.questions.counts import OTHER, Bins, counted_with_others
from fedprivacy.questions.errors import QuestionError, as_tuple, check_name, is_writable, settle, shown
from fedprivacy.questions.question import Totals

MOST_PREFIXES = 2**15
"""Prefixes and whole texts of one question together."""


@dataclass(frozen=True, kw_only=True)
class Prefixes(Bins):
    """How many records' texts begin with each public prefix, are each public whole text, and are none of these.

    A record's vector is a one at the whole text that its text is; else at the prefix that it begins with; else at
    "other". A cell's text is as `Table.texts` has it, without blanks around; capitals and accents count as they are
    written. An empty cell is nowhere.

    Attributes:
        column: of texts.
        prefixes: none begins with another one, or with a blank: no text does.
        whole: texts that are counted for themselves, apart from what begins with them and goes on.
    """

    kind = "prefixes"
    column: str
    prefixes: tuple[str, ...]
    whole: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("column", self.column)
        settle(self, prefixes=as_tuple("prefixes", self.prefixes), whole=as_tuple("whole", self.whole))
        if not 1 <= (count := len(self.prefixes) + len(self.whole)) <= MOST_PREFIXES:
            raise QuestionError(f"{self.column} has {count} prefixes and whole texts; name 1 to {MOST_PREFIXES}.")
        for text in self.prefixes:
            _check_text(f"a prefix of {self.column}", text, str.lstrip)
        for text in self.whole:
            _check_text(f"a whole text of {self.column}", text, str.strip)
        if len(set(self.whole)) < len(self.whole):
            raise QuestionError(f"two whole texts of {self.column} are the same; name each once.")
        for one, other in pairwise(sorted(self.prefixes)):  # what begins with a text follows it at once
            if other.startswith(one):
                raise QuestionError(f"of {self.column}, {shown(other)} begins with {shown(one)}; name one of the two.")

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def width(self) -> int:
        """The prefixes, the whole texts, and none of them."""
        return len(self.prefixes) + len(self.whole) + 1

    @property
    def words(self) -> str:
        """For people."""
        return f"records by how {self.column} begins"

    @property
    def bins(self) -> Iterator[str]:
        """The prefixes, with dots for how they go on, the whole texts, and none of them."""
        yield from (f"{prefix}..." for prefix in self.prefixes)
        yield from self.whole
        yield OTHER

    def summed(self, rows: Rows) -> Totals:
        """Records of each prefix and each whole text, and in the last place of none of them."""
        codes = rows.beginnings(self.column, self.prefixes, self.whole)
        return counted_with_others(codes, rows.empty(self.column), self.width)


def _check_text(what: str, text: object, stripped: Callable[[str], str]) -> None:
    if not isinstance(text, str) or not text or stripped(text) != text:
        raise QuestionError(f"{what} is {shown(text)}; give a text as a cell's is, from which blanks around are taken.")
    if len(text) > LONGEST_LEVEL or not is_writable(text):
        raise QuestionError(f"{what} is {shown(text)}; give at most {LONGEST_LEVEL} characters that can be written.")
