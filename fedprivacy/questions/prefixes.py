"""Histogram of texts over public prefixes and whole texts; the domain of texts need not be listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fedprivacy.questions.arguments import QuestionError, as_tuple, check_name, is_writable, settle, shown
from fedprivacy.questions.conditions import LONGEST_LEVEL, ChosenRecords
from fedprivacy.questions.counts import OTHER, Bins, counted_with_others
from fedprivacy.questions.lattice import Totals
from fedprivacy.values.wording import plural

MOST_PREFIXES = 2**15
"""Maximum number of prefixes and whole texts of one question together."""


@dataclass(frozen=True, kw_only=True)
class Prefixes(Bins):
    """Number of texts that begin with each public prefix, that are each public whole text, and that are none of these.

    A record's vector is a one at the whole text that equals its text; else at the prefix that its text begins with;
    else at "other". A cell's text is that of `Table.texts`, without surrounding blanks; capitals and accents count. An
    empty cell is in no bin.

    Attributes:
        column: name of the column of texts.
        prefixes: public prefixes; none begins with another one, or with a blank, as no text does.
        whole: public texts that are counted separately from longer texts that begin with them.
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
        for one, other in pairwise(sorted(self.prefixes)):  # sorted, extensions of a text directly follow it
            if other.startswith(one):
                raise QuestionError(f"of {self.column}, {shown(other)} begins with {shown(one)}; name one of the two.")

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def width(self) -> int:
        """Number of prefixes and whole texts, plus one for none of them."""
        return len(self.prefixes) + len(self.whole) + 1

    def words_of(self, unit: str) -> str:
        """Return the question for people."""
        return f"{plural(unit)} by how {self.column} begins"

    @property
    def bins(self) -> Iterator[str]:
        """The prefixes, followed by dots, the whole texts, and "other" for none of them."""
        yield from (f"{prefix}..." for prefix in self.prefixes)
        yield from self.whole
        yield OTHER

    def summed(self, rows: ChosenRecords) -> Totals:
        """Count records of each prefix and each whole text, and in the last place those of none of them."""
        codes = rows.beginnings(self.column, self.prefixes, self.whole)
        return counted_with_others(codes, rows.empty(self.column), self.width)


def _check_text(argument: str, text: object, stripped: Callable[[str], str]) -> None:
    if not isinstance(text, str) or not text or stripped(text) != text:
        raise QuestionError(
            f"{argument} is {shown(text)}; give a text as a cell's is, from which blanks around are taken."
        )
    if len(text) > LONGEST_LEVEL or not is_writable(text):
        raise QuestionError(
            f"{argument} is {shown(text)}; give at most {LONGEST_LEVEL} characters that can be written."
        )
