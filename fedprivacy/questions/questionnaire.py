"""Questionnaire: questions that are asked together, and share the privacy loss of one release."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from fedprivacy.questions import codec
from fedprivacy.questions.arguments import QuestionError, as_number, as_tuple, settle
from fedprivacy.questions.question import Question

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
        if (characters := len(self.as_text())) > codec.LONGEST_TEXT:
            most = codec.LONGEST_TEXT
            raise QuestionError(f"the questions have {characters} characters; {most} is the most: name fewer levels.")

    @property
    def columns(self) -> frozenset[str]:
        """Every column that a question reads."""
        return frozenset().union(*(question.columns for question in self.questions))

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of all questions."""
        return frozenset(question.kind for question in self.questions)

    def noise_multipliers(self, sigma: float) -> list[float]:
        """Return the noise multiplier of each question, if all of them together have `sigma`."""
        whole = sum(self.shares)
        return [sigma * math.sqrt(whole / share) * ROUNDED_UP for share in self.shares]

    def as_text(self) -> str:
        """Write the questionnaire as JSON."""
        return json.dumps([[codec.as_text(q), s] for q, s in zip(self.questions, self.shares, strict=True)])

    @classmethod
    def of_text(cls, text: str) -> Questionnaire:
        """Return the questionnaire that `as_text` wrote; the text may come from anybody and is checked.

        Raises:
            QuestionError: the text is no questionnaire, or one that cannot be asked.
        """
        if len(text) > codec.LONGEST_TEXT:
            raise QuestionError(f"the questions have {len(text)} characters; {codec.LONGEST_TEXT} is the most.")
        try:
            pairs = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise QuestionError("the questions are no JSON.") from error
        if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
            raise QuestionError("the questions are no list of questions and shares.")
        if not all(isinstance(question, str) for question, _ in pairs):
            raise QuestionError("a question is no text.")
        return cls(tuple(codec.of_text(question) for question, _ in pairs), tuple(share for _, share in pairs))


def _questions(given: object) -> tuple[Question, ...]:
    questions = as_tuple("questions", given)
    if not 1 <= len(questions) <= MOST_QUESTIONS:
        raise QuestionError(f"{len(questions)} questions are asked together; ask 1 to {MOST_QUESTIONS}.")
    if not all(isinstance(question, Question) for question in questions):
        raise QuestionError("something is asked that is no question; see fedprivacy.questions.constructors.")
    return questions


def _shares(given: object, questions: int) -> tuple[float, ...]:
    shares = tuple(as_number("a share", share) for share in as_tuple("shares", given)) or (1.0,) * questions
    if len(shares) != questions:
        raise QuestionError(f"{len(shares)} shares are for {questions} questions; give one for each.")
    for share in shares:
        if not 1e-6 <= share <= 1e6:
            raise QuestionError(f"a share is {share}; give a number from 1e-6 to 1e6.")
    return shares
