"""Frequent texts of a column whose domain nobody may list: a prefix tree, grown where noisy counts are large.

The first question counts texts by their first character, for a public alphabet; the next one extends those prefixes
whose noisy count stands out of the noise, and so on, a character at a time (TrieHH: Zhu, Kairouz, McMahan, Sun,
Li 2020, arXiv 1902.08534; PEM: Wang, Li, Jha 2019, arXiv 1708.06674; TreeHist: Bassily, Nissim, Stemmer, Thakurta 2017,
arXiv 1707.04982). Each question counts texts that end with a character separately from those that go on. Counts are
those of the federation: a text that is rare at each client is found if it is frequent among all of them.

Formal guarantee. Records are read by `Prefixes` questions only, and each question depends on earlier answers alone: the
search is an adaptive composition of Gaussian releases, which the account composes. The candidate texts are public,
independent of the records; so no delta is needed beside the account's, unlike methods that count existing texts and
drop rare ones. Everything else here is post-processing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Generic, TypeVar

from fedprivacy.questions import codec
from fedprivacy.questions.answers import Answers
from fedprivacy.questions.arguments import QuestionError, as_whole, is_writable, settle, shown
from fedprivacy.questions.conditions import Condition
from fedprivacy.questions.counts import standing_out
from fedprivacy.questions.figures import Estimate
from fedprivacy.questions.prefixes import MOST_PREFIXES, Prefixes
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.values.runs import Rows

LONGEST = 64
"""Maximum number of characters of a text; each adds a question to which a part of the privacy loss goes."""

SURE = 0.99
"""Probability with which a text is found that has as many records as `Frequent.surely` says."""

Answered = TypeVar("Answered", bound=Answers)
"""Answers, with any additions by the function that asks."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Parameters of a search for frequent texts.

    Attributes:
        column: name of the column of texts.
        alphabet: characters to search, each once and in canonical order; a text is followed up to any other character.
        length: number of characters up to which texts are followed, and maximum number of questions.
        most: maximum number of texts to report.
        where: conditions that a record must meet.

    Raises:
        QuestionError: the search cannot be asked.
    """

    column: str
    alphabet: str
    length: int
    most: int = 20
    where: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.alphabet, str) or not self.alphabet.strip() or not is_writable(self.alphabet):
            raise QuestionError(f"alphabet is {shown(self.alphabet)}; give all characters to look for as one text.")
        settle(
            self,
            alphabet="".join(sorted(set(self.alphabet))),
            length=as_whole("length", self.length, 1, LONGEST),
            most=as_whole("most", self.most, 1, 1000),
        )
        if not self.room(self.length):
            raise QuestionError(
                f"texts of {self.length} characters, each one of {len(self.alphabet)}, do not fit into one question; "
                "give fewer characters, or a smaller length."
            )

    def question(self, beginnings: Iterable[str] = ("",)) -> Prefixes:
        """Return the question that extends texts with these beginnings by one character, whether they end there or go
        on.
        """
        longer = sorted(
            beginning + character
            for beginning in beginnings
            for character in self.alphabet
            if beginning or not character.isspace()  # texts have no surrounding blanks
        )
        whole = tuple(text for text in longer if not text[-1].isspace())
        return Prefixes(column=self.column, prefixes=tuple(longer), whole=whole, where=self.where)

    def room(self, characters: int) -> int:
        """Return how many beginnings a question can extend to texts of `characters` characters, whichever these are."""
        least = len(Questionnaire((Prefixes(column=self.column, prefixes=("-",), where=self.where),)).as_text())
        text = _written("") + characters * max(_written(each) - _written("") for each in self.alphabet)
        texts = min(MOST_PREFIXES, (codec.LONGEST_TEXT - least) // text)
        return texts // (2 * len(self.alphabet))


def _written(text: str) -> int:
    """Return the length of a text in a questionnaire's text, which is JSON in JSON, including the following comma."""
    return len(json.dumps(json.dumps(text))) - len('""') + len(",")


@dataclass(frozen=True)
class Depth:
    """Results for one length of texts: frequent texts and beginnings, by text, the largest noisy count first.

    Attributes:
        asked: number of texts and beginnings that were counted.
        threshold: number of records that noise alone makes one of the counts exceed in less than one of 1000 answers.
        texts: texts that end there.
        beginnings: beginnings of texts that go on.
        other: number of records with a text that was not counted.
    """

    asked: int
    threshold: float
    texts: Mapping[str, Estimate]
    beginnings: Mapping[str, Estimate]
    other: Estimate

    @classmethod
    def of(cls, question: Prefixes, figures: Sequence[Estimate]) -> Depth:
        """Make the results from figures, one for each bin of a question."""
        *counts, other = figures
        threshold, places = standing_out(question.width) * (other.error or 0.0), len(question.prefixes)
        texts = _largest(zip(question.whole, counts[places:], strict=True), threshold)
        beginnings = _largest(zip(question.prefixes, counts[:places], strict=True), threshold)
        return cls(len(counts), threshold, texts, beginnings, other)

    @property
    def followed(self) -> frozenset[str]:
        """Beginnings, a character shorter, of the texts that stand out."""
        return frozenset(text[:-1] for text in (*self.texts, *self.beginnings))


def _largest(named: Iterable[tuple[str, Estimate]], threshold: float = 0.0) -> dict[str, Estimate]:
    """Select the figures above a threshold by name, the largest first."""
    found = [(name, figure) for name, figure in named if (figure.value or 0.0) > threshold]
    return dict(sorted(found, key=lambda each: -(each[1].value or 0.0)))


@dataclass(frozen=True)
class Frequent(Generic[Answered]):
    """The most frequent texts of a column, as far as they stand out of the noise.

    Attributes:
        search: parameters of the search.
        answers: answers to every question that was asked, in their order.
        depths: results for texts of one character, two, and so on.
        stopped: reason why texts were not followed further; empty: nothing was left to follow, or the length is
            reached.
    """

    search: Search
    answers: tuple[Answered, ...]
    depths: tuple[Depth, ...]
    stopped: str = ""

    @property
    def texts(self) -> Rows:
        """Rows of the most frequent texts: `text`; `value`, the noisy number of records; `error`, `low` and `high`."""
        return Rows(_row("text", *named) for named in list(self._ended.items())[: self.search.most])

    @property
    def left_out(self) -> int:
        """Number of further texts that stand out."""
        return max(len(self._ended) - self.search.most, 0)

    @property
    def beginnings(self) -> Rows:
        """Rows of the beginnings that stand out although none of their extensions does.

        The columns are `beginning`, and the rest as in `texts`. Such texts are longer than the search, or diverse, or
        go on with a character that is not in the alphabet.
        """
        after = [depth.followed for depth in self.depths[1:]] + [frozenset()]
        ends = _largest(
            named
            for depth, followed in zip(self.depths, after, strict=False)
            for named in depth.beginnings.items()
            if named[0] not in followed
        )
        return Rows(_row("beginning", *named) for named in ends.items())

    @property
    def by_depth(self) -> Rows:
        """Rows of the questions that were answered.

        The columns are `characters` of the texts; the number `asked` for; the numbers of `texts` and `beginnings` above
        the `threshold`; `other`, the noisy number of records whose text was not asked for (in the first row, texts that
        begin with no character of the alphabet); `error`, the standard error of each of these numbers; `clients`, the
        number of clients that answered.
        """
        return Rows(
            {
                "characters": number + 1,
                "asked": depth.asked,
                "texts": len(depth.texts),
                "beginnings": len(depth.beginnings),
                "threshold": depth.threshold,
                "other": depth.other.value,
                "error": depth.other.error,
                "clients": len(answers.told) - sum(map(len, answers.silent().values())),
            }
            for number, (depth, answers) in enumerate(zip(self.depths, self.answers, strict=False))
        )

    @property
    def surely(self) -> float | None:
        """Smallest number of records with which a text of at most `length` characters is found with 99 % probability.

        It holds for texts of the alphabet's characters and records of the clients that answered; if the search was
        stopped, for texts up to the length that was asked. None: nothing was answered.
        """
        if not self.depths:
            return None
        # Each depth misses a text so rarely that all together miss it with the stated probability.
        reach = NormalDist().inv_cdf(1.0 - (1.0 - SURE) / len(self.depths))
        return max(self._cut(number) + reach * (depth.other.error or 0.0) for number, depth in enumerate(self.depths))

    def _cut(self, number: int) -> float:
        """Return the value that a noisy count must exceed: the threshold, or the largest count for which there was no
        room.
        """
        depth, is_last = self.depths[number], number + 1 == len(self.depths)
        beyond = [] if is_last else list(depth.beginnings.values())[self.search.room(number + 2) :]
        return max([depth.threshold, *(figure.value or 0.0 for figure in beyond)])

    @property
    def _ended(self) -> dict[str, Estimate]:
        """Texts that stand out, the largest noisy count first."""
        return _largest(named for depth in self.depths for named in depth.texts.items())


def _row(column: str, text: str, figure: Estimate) -> dict[str, object]:
    return {column: text, "value": figure.value, "error": figure.error, "low": figure.low, "high": figure.high}


def frequent(
    search: Search, ask: Callable[[Questionnaire], Answered], stops: tuple[type[Exception], ...] = ()
) -> Frequent[Answered]:
    """Ask about one character after another, until nothing is left that stands out, or the length is reached.

    Args:
        search: parameters of the search.
        ask: function that asks a question and returns the answers.
        stops: errors that it raises when a budget ends: the results until then are returned. Before the first answer
            there is nothing to return, and the error is raised.
    """
    answers: list[Answered] = []
    depths: list[Depth] = []
    beginnings, stopped = [""], ""
    while beginnings and len(depths) < search.length:
        question = search.question(beginnings)
        try:
            answers.append(ask(Questionnaire((question,))))
        except stops as reason:
            if not depths:
                raise
            stopped = str(reason)
            break
        figures = answers[-1].figures()
        if len(figures) < question.width:
            stopped = f"no client told how texts begin in {len(depths) + 1} characters"
            break
        depths.append(Depth.of(question, figures))
        beginnings = list(depths[-1].beginnings)[: search.room(len(depths) + 1)]
    return Frequent(search, tuple(answers), tuple(depths), stopped)
