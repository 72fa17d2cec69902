"""Answers for people: figures of one client, or of the federation, and the groups that were not told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedprivacy.questions.figures import Estimate
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals, combine
from fedprivacy.values.runs import Rows
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import count_text

NOT_TOLD = "not told"
"""Text in place of the figures of a group that no client tells of."""


@dataclass(frozen=True, slots=True)
class Told:
    """One client's answer to one question.

    Attributes:
        noise_multiplier: standard deviation of the question's noise over its sensitivity.
        answer: the noisy totals.
    """

    noise_multiplier: float
    answer: NoisyTotals


@dataclass(frozen=True)
class Answers:
    """Clients' answers to the questions of one questionnaire.

    Attributes:
        asked: the questions.
        told: answers to each question, in their order, by client_id.
        unit: the task's word for a record.
    """

    asked: Questionnaire
    told: Mapping[str, Sequence[Told]]
    unit: str = RECORD.name

    def __repr__(self) -> str:
        questions, clients = count_text(len(self.asked.questions), "question"), count_text(len(self.told), "client")
        return f"<Answers of {clients} to {questions}>"

    def _repr_html_(self) -> str:
        return self.federation._repr_html_()

    @property
    def federation(self) -> Rows:
        """A row for each figure of all clients' records together, see `_row`."""
        return Rows(
            self._row(question, figure)
            for number, question in enumerate(self.asked.questions)
            for figure in self.figures(number)
        )

    @property
    def clients(self) -> Rows:
        """A row for each figure of each client's records alone: with its `client_id`, else as in `federation`."""
        return Rows(
            {"client_id": client_id} | self._row(question, figure)
            for client_id in sorted(self.told)
            for number, question in enumerate(self.asked.questions)
            for figure in self.figures(number, client_id)
        )

    def figures(self, number: int = 0, client_id: str | None = None) -> list[Estimate]:
        """Return the figures of one question.

        Args:
            number: number of the question, from 0.
            client_id: client whose records are described; None: all clients together.

        Raises:
            KeyError: no such client has answered.
        """
        answers = self.told.values() if client_id is None else [self.told[client_id]]
        return figures_of(self.asked.questions[number], [told[number] for told in answers])

    def records(self, number: int, client_id: str) -> float:
        """Estimate the number of a client's records that the answer to a question covers."""
        question, told = self.asked.questions[number], self.told[client_id][number]
        groups = combine(question, [told.noise_multiplier], [told.answer])
        return sum(question.records(noisy) for noisy in groups if noisy is not None)

    def value(self, name: str, group: str = "", number: int = 0) -> float:
        """Return one estimate for all clients' records together, by its name.

        >>> import numpy as np
        >>> from fedprivacy.questions.constructors import Questions
        >>> forty = Told(1.0, NoisyTotals(np.array([[40 * 2**20]]), np.array([True])))
        >>> answers = Answers(Questionnaire((Questions.count(),)), {"north": [forty], "south": [forty]})
        >>> answers.value("count")
        80.0

        Raises:
            KeyError: there is no such figure, or it is lost in the noise.
        """
        for figure in self.figures(number):
            if (figure.name, figure.group) == (name, group) and figure.value is not None:
                return figure.value
        raise KeyError(
            f"no value of '{name}'{f' in group {group}' if group else ''}; see `federation` for what there is"
        )

    def silent(self, number: int = 0) -> dict[str, list[str]]:
        """List, by group, the clients that do not tell of it because their noisy number of its records is too small."""
        question = self.asked.questions[number]
        return {
            group: silent
            for place, group in enumerate(question.groups)
            if (silent := sorted(c for c, told in self.told.items() if not told[number].answer.told[place]))
        }

    def _row(self, question: Question, figure: Estimate) -> dict[str, object]:
        """Return a figure as a row.

        `question`; `group`, empty for all records; `figure`; `value`; `error`, the standard error that the noise gives
        it; `low` and `high`, its 95 % confidence interval. None: the value is lost in the noise.
        """
        told = figure._asdict()
        return {"question": question.words_of(self.unit), "group": told.pop("group"), "figure": told.pop("name")} | told


def figures_of(question: Question, answers: Sequence[Told]) -> list[Estimate]:
    """Estimate the figures of all clients' records together from their answers to one question.

    Noisy totals add up, and so do the squared deviations of their noise.
    """
    sums = combine(question, [each.noise_multiplier for each in answers], [each.answer for each in answers])
    found: list[Estimate] = []
    for group, noisy in zip(question.groups, sums, strict=True):
        figures = question.figures(noisy) if noisy is not None else [Estimate(NOT_TOLD)]
        found += [figure._replace(group=group) for figure in figures]
    return found
