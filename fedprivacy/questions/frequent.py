"""The most frequent texts of a column when nobody may list its domain: a prefix tree, grown where answers are large.

The first question is how many texts begin with each character of a public alphabet; the next one how those go on whose
noisy number of records stands out of the noise, and so on, a character at a time (TrieHH: Zhu, Kairouz, McMahan, Sun,
Li 2020, arXiv 1902.08534; PEM: Wang, Li, Jha 2019, arXiv 1708.06674; TreeHist: Bassily, Nissim, Stemmer, Thakurta 2017,
arXiv 1707.04982). Each counts what ends with a character apart from what goes on. Numbers of records are those of the
federation: a text that is rare at each client is found if it is frequent among all of them.

Formal guarantee. Nothing is read of records but by `Prefixes` questions, and each is chosen by the answers before it
alone: so the search is an adaptive composition of Gaussian releases, which is what the account is kept of. What is
looked for is public, whatever is there; so there is no delta beside that of the account, as there is where the texts
that somebody has are counted and the rare ones are left out. Everything else here is post-processing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Generic, TypeVar

from fedprivacy.questions import codec
from fedprivacy.questions.answers import Answers
from fedprivacy.questions.conditions import Condition
from fedprivacy.questions.counts import standing_out
from fedprivacy.questions.errors import QuestionError, as_whole, is_writable, settle, shown
from fedprivacy.questions.figures import Figure
from fedprivacy.questions.prefixes import MOST_PREFIXES, Prefixes
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.values.runs import Rows

LONGEST = 64
"""Characters of a text that are looked for; each is a question more that the privacy loss is divided over."""

SURE = 0.99
"""Probability with which a text is found that has as many records as `Frequent.surely` says."""

Answered = TypeVar("Answered", bound=Answers)
"""Answers, with whatever the one who asked adds to them."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is looked for.

    Attributes:
        column: of texts.
        alphabet: the characters that are looked for, each once and in one order; a text is followed up to any other.
        length: up to which character texts are followed, and how many questions there are at most.
        most: how many texts are told.
        where: conditions that a record must meet.

    Raises:
        QuestionError: it cannot be asked.
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
        """How texts go on that begin so, by their next character: whether they end with it, or go on."""
        longer = sorted(
            beginning + character
            for beginning in beginnings
            for character in self.alphabet
            if beginning or not character.isspace()  # no text begins or ends with a blank
        )
        whole = tuple(text for text in longer if not text[-1].isspace())
        return Prefixes(column=self.column, prefixes=tuple(longer), whole=whole, where=self.where)

    def room(self, characters: int) -> int:
        """How many beginnings a question can follow to texts of so many characters, whichever these are."""
        least = len(Questionnaire((Prefixes(column=self.column, prefixes=("-",), where=self.where),)).as_text())
        text = _written("") + characters * max(_written(each) - _written("") for each in self.alphabet)
        texts = min(MOST_PREFIXES, (codec.LONGEST_TEXT - least) // text)
        return texts // (2 * len(self.alphabet))


def _written(text: str) -> int:
    """How much room a text takes in a questionnaire's, which is JSON in JSON; with the comma after it."""
    return len(json.dumps(json.dumps(text))) - len('""') + len(",")


@dataclass(frozen=True)
class Depth:
    """What stands out among the texts and beginnings of one length. By text, the largest noisy count first.

    Attributes:
        asked: how many texts and beginnings were counted.
        threshold: of records: the noise makes one of the counts exceed it in less than one of 1000 answers.
        texts: that end there.
        beginnings: of texts that go on.
        other: records that have a text, and none that was counted.
    """

    asked: int
    threshold: float
    texts: Mapping[str, Figure]
    beginnings: Mapping[str, Figure]
    other: Figure

    @classmethod
    def of(cls, question: Prefixes, figures: Sequence[Figure]) -> Depth:
        """What figures say, one for each bin of a question."""
        *counts, other = figures
        threshold, places = standing_out(question.width) * (other.error or 0.0), len(question.prefixes)
        texts = _largest(zip(question.whole, counts[places:], strict=True), threshold)
        beginnings = _largest(zip(question.prefixes, counts[:places], strict=True), threshold)
        return cls(len(counts), threshold, texts, beginnings, other)

    @property
    def followed(self) -> frozenset[str]:
        """The beginnings, a character shorter, of what stands out."""
        return frozenset(text[:-1] for text in (*self.texts, *self.beginnings))


def _largest(named: Iterable[tuple[str, Figure]], threshold: float = 0.0) -> dict[str, Figure]:
    """The figures above a threshold by name, the largest first."""
    found = [(name, figure) for name, figure in named if (figure.value or 0.0) > threshold]
    return dict(sorted(found, key=lambda each: -(each[1].value or 0.0)))


@dataclass(frozen=True)
class Frequent(Generic[Answered]):
    """The most frequent texts of a column, as far as they stand out of the noise.

    Attributes:
        search: what was looked for.
        answers: to every question that was asked, in their order.
        depths: what they say, for texts of one character, two, and so on.
        stopped: why texts were not followed further; empty: there was nothing left to follow, or the length is reached.
    """

    search: Search
    answers: tuple[Answered, ...]
    depths: tuple[Depth, ...]
    stopped: str = ""

    @property
    def texts(self) -> Rows:
        """The most frequent texts: `text`; `value`, the noisy number of records; `error`, `low` and `high` as ever."""
        return Rows(_row("text", *named) for named in list(self._ended.items())[: self.search.most])

    @property
    def left_out(self) -> int:
        """How many texts stand out besides."""
        return max(len(self._ended) - self.search.most, 0)

    @property
    def beginnings(self) -> Rows:
        """What texts begin with that together stand out, while none of the next character does.

        `beginning`, and the rest as in `texts`. They are longer than what was asked, or diverse, or go on with a
        character that is not in the alphabet.
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
        """A row for each question that was answered.

        `characters` of the texts; how many were `asked` for; how many `texts` and `beginnings` stand out, by more than
        the `threshold`; `other`, the noisy number of records whose text is none of those asked for, of which the first
        row's begin with none of the alphabet's characters; `error`, the standard error of each of these numbers;
        `clients`, how many have told.
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
        """The least number of records with which a text of at most `length` characters is found with 99 % probability.

        It is for texts of the alphabet's characters and records of the clients that told; where the search was stopped,
        for texts no longer than what was asked. None: nothing was answered.
        """
        if not self.depths:
            return None
        # Each depth misses it with a probability so small that all together miss it as rarely as is said.
        reach = NormalDist().inv_cdf(1.0 - (1.0 - SURE) / len(self.depths))
        return max(self._cut(number) + reach * (depth.other.error or 0.0) for number, depth in enumerate(self.depths))

    def _cut(self, number: int) -> float:
        """What a noisy count must exceed: the threshold, or the largest that there was no room to follow."""
        depth, is_last = self.depths[number], number + 1 == len(self.depths)
        beyond = [] if is_last else list(depth.beginnings.values())[self.search.room(number + 2) :]
        return max([depth.threshold, *(figure.value or 0.0 for figure in beyond)])

    @property
    def _ended(self) -> dict[str, Figure]:
        """Every text that stands out, the largest noisy count first."""
        return _largest(named for depth in self.depths for named in depth.texts.items())


def _row(what: str, text: str, figure: Figure) -> dict[str, object]:
    return {what: text, "value": figure.value, "error": figure.error, "low": figure.low, "high": figure.high}


def frequent(
    search: Search, ask: Callable[[Questionnaire], Answered], stops: tuple[type[Exception], ...] = ()
) -> Frequent[Answered]:
    """Ask, one character after another, until nothing is left that stands out, or the length is reached.

    Args:
        search: what is looked for.
        ask: who asks a question, and returns the answers.
        stops: what it raises where a budget ends: what was found until then is returned. Before the first answer there
            is nothing to return, and it is raised.
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
