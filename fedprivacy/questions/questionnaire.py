"""Questionnaire: questions that are asked together, share the privacy loss of one release, and are sent as one text.

The text is for machines: signatures cover it, and ledgers find kept answers by it. People write questions in Python
or type them (`fedprivacy.questions.constructors`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedprivacy.questions.arguments import QuestionError, as_number, as_tuple, brief, settle
from fedprivacy.questions.conditions import OneOf, Within
from fedprivacy.questions.counts import Categories, Count, HeavyHitters, Histogram, RowCount
from fedprivacy.questions.moments import Bounded, Covariance, Mean, Spread, Sum
from fedprivacy.questions.quantiles import Quantiles
from fedprivacy.questions.question import Question
from fedprivacy.values.wording import question_text

_KINDS = Count, RowCount, Categories, HeavyHitters, Histogram, Sum, Mean, Spread, Covariance, Quantiles

KINDS: Mapping[str, type[Any]] = {kind.kind: kind for kind in _KINDS}
"""Every kind of question, by its name in a text and in a data owner's list of allowed questions."""

LONGEST_TEXT = 1_000_000
"""Maximum number of characters of a question's text, and of a questionnaire's."""

MOST_QUESTIONS = 256
MOST_TOTALS = 2**20
"""Maximum number of totals that all questions of one questionnaire may release."""

ROUNDED_UP = 1.0 + 1e-12
"""Factor that covers the rounding of square roots and shares: the noise is never below the charged noise."""


@dataclass(frozen=True, slots=True)
class Questionnaire:
    """Questions that share the privacy loss of one Gaussian release.

    A question has a share of the sum of squared signal-to-noise ratios, by which Gaussian mechanisms compose: with
    shares w that sum to 1 and a noise multiplier sigma of the whole, question i has the noise multiplier sigma /
    sqrt(w_i), and 1 / sigma^2 is the sum of the questions' values.

    Attributes:
        questions: questions, at least one.
        shares: one positive number for each question, in any unit; equal by default.

    Raises:
        QuestionError: there are no questions or too many, or a share is no positive number.
    """

    questions: tuple[Question, ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        settle(self, questions=_questions(self.questions))
        settle(self, shares=_shares(self.shares, len(self.questions)))
        if (totals := sum(len(each.groups) * each.width for each in self.questions)) > MOST_TOTALS:
            raise QuestionError(f"the questions release {totals} numbers; {MOST_TOTALS} is the most: ask for less.")
        if (characters := len(self.as_text())) > LONGEST_TEXT:
            raise QuestionError(
                f"the questions have {characters} characters; {LONGEST_TEXT} is the most: name fewer levels."
            )

    @property
    def columns(self) -> frozenset[str]:
        """Every column that a question reads."""
        return frozenset().union(*(question.columns for question in self.questions))

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(question.kind for question in self.questions)

    def noise_multipliers(self, sigma: float) -> list[float]:
        """Return the noise multiplier of each question, if all of them together have `sigma`."""
        whole = sum(self.shares)
        return [sigma * math.sqrt(whole / share) * ROUNDED_UP for share in self.shares]

    def as_text(self) -> str:
        """Write the questionnaire as JSON."""
        return json.dumps([[q.as_text(), s] for q, s in zip(self.questions, self.shares, strict=True)])

    @classmethod
    def from_text(cls, text: str) -> Questionnaire:
        """Return the questionnaire that `as_text` wrote; the text may come from anybody and is checked.

        Raises:
            QuestionError: the text is no questionnaire, or one that cannot be asked.
        """
        if len(text) > LONGEST_TEXT:
            raise QuestionError(f"the questions have {len(text)} characters; {LONGEST_TEXT} is the most.")
        try:
            pairs = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise QuestionError("the questions are no JSON.") from error
        if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
            raise QuestionError("the questions are no list of questions and shares.")
        if not all(isinstance(question, str) for question, _ in pairs):
            raise QuestionError("a question is no text.")
        return cls(tuple(read_question(question) for question, _ in pairs), tuple(share for _, share in pairs))


def _questions(given: object) -> tuple[Question, ...]:
    questions = as_tuple("questions", given)
    if not 1 <= len(questions) <= MOST_QUESTIONS:
        raise QuestionError(f"{len(questions)} questions are asked together; ask 1 to {MOST_QUESTIONS}.")
    for question in questions:
        if not isinstance(question, Question):
            raise QuestionError(f"{brief(question)} is asked, which is no question; make one, such as fp.ask.count().")
    return questions


def _shares(given: object, questions: int) -> tuple[float, ...]:
    shares = tuple(as_number("a share", share) for share in as_tuple("shares", given)) or (1.0,) * questions
    if len(shares) != questions:
        raise QuestionError(f"{len(shares)} shares are for {questions} questions; give one for each.")
    for share in shares:
        if not 1e-6 <= share <= 1e6:
            raise QuestionError(f"a share is {share}; give a number from 1e-6 to 1e6.")
    return shares


def describe(text: str) -> str:
    """Describe a question's text for people; the text may come from anybody.

    >>> import fedprivacy as fp
    >>> describe(fp.ask.mean("age", 0, 120, where={"sex": "f"}).as_text())
    'mean of age, where sex is f'
    """
    try:
        return read_question(text).sentence
    except QuestionError:  # from a later version, or from somebody else
        return question_text(text)


def read_question(text: str) -> Question:
    """Return the question that `Question.as_text` wrote; the text may come from anybody and is checked.

    Raises:
        QuestionError: the text is no question, or one that cannot be asked.
    """
    if len(text) > LONGEST_TEXT:
        raise QuestionError(f"a question has {len(text)} characters; {LONGEST_TEXT} is the most.")
    try:
        fields = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise QuestionError("a question is no JSON, or says something twice.") from error
    if not isinstance(fields, dict) or not isinstance(name := fields.pop("kind", None), str):
        raise QuestionError("a question names no kind.")
    if (kind := KINDS.get(name)) is None:
        raise QuestionError(f"the question's kind is {brief(name)}; choose one of {', '.join(KINDS)}.")
    question: Question = _make(kind, fields)
    return question


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) < len(pairs):
        raise ValueError
    return fields


def _make(kind: type[Any], fields: object) -> Any:
    """Make a dataclass of its fields by name."""
    if not isinstance(fields, dict):
        raise QuestionError(f"a {kind.__name__} is a {type(fields).__name__}; give its fields.")
    if fields.keys() != (known := {field.name for field in dataclasses.fields(kind)}):
        raise QuestionError(f"a {kind.__name__} has the fields {', '.join(sorted(known))}, and others are given.")
    return kind(**{key: _read(key, value) for key, value in fields.items()})


def _read(key: str, value: Any) -> object:
    """Convert a field's value: nested fields become dataclasses, and lists tuples."""
    if key == "by" and value is not None:
        return _make(OneOf, value)
    if key not in ("where", "of", "levels", "at"):
        return value
    if not isinstance(value, list):
        raise QuestionError(f"{key} is a {type(value).__name__}; give a list.")
    match key:
        case "where":
            kinds = (OneOf if isinstance(each, dict) and "levels" in each else Within for each in value)
            return tuple(map(_make, kinds, value))
        case "of":
            return tuple(_make(Bounded, each) for each in value)
    return tuple(value)
