"""The release of noisy totals: a client's answer to every question of a questionnaire, one event, one charge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose, Reader
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise
from fedprivacy.questions.figures import Noisy
from fedprivacy.questions.lattice import Totals
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import ROUNDED_UP, Questionnaire
from fedprivacy.tasks.cells import TableError
from fedprivacy.tasks.columns import Table
from fedprivacy.values.events import PoissonSampledGaussian


@dataclass(frozen=True, slots=True)
class NoisyTotals:
    """One client's release for one question.

    Formal guarantee: see `GaussianAnswers`. Nothing else in this object depends on records.

    Attributes:
        totals: noisy totals in whole lattice steps, shape [groups, width]; zero where a group is not told.
        told: mask of the groups that are told, shape [groups].
    """

    totals: Totals
    told: NDArray[np.bool_]

    @property
    def rows(self) -> Totals:
        """Totals as sent and stored: each group's totals after 1 if it is told, else after 0; [groups, 1 + width]."""
        return np.column_stack([self.told.astype(np.int64), self.totals])

    @classmethod
    def from_rows(cls, rows: Totals) -> NoisyTotals:
        """Invert `rows`; a group that is not told gets totals of zero, whatever the row says."""
        told = rows[:, 0] != 0
        return cls(np.where(told[:, np.newaxis], rows[:, 1:], 0), told)


def deviation(question: Question, noise_multiplier: float) -> float:
    """Return the standard deviation of the noise in each total, in whole lattice steps."""
    return noise_multiplier * math.sqrt(question.squared_sensitivity) * ROUNDED_UP


@dataclass(frozen=True, slots=True)
class GaussianAnswers:
    """The answers to a questionnaire, with noise added once.

    Formal guarantee: one release of `event`. Divide the totals of question i, whose share is w_i, by the deviation of
    its noise. Tables that differ by one record, or by a null record in its place, differ there by at most
    sqrt(w_i) / sigma (`Question`), so that all questions together differ by at most 1 / sigma. Totals are whole
    numbers, and the noise is normal noise rounded to whole numbers: a post-processing of the Gaussian mechanism
    (`add_lattice_noise`). Noisy totals alone decide which groups are told.

    Attributes:
        event: event that is charged; it is not sampled.
        smallest_cohort: noisy number of records below which a group is not told; 0: every group is told.

    Raises:
        ValueError: the event samples records.
    """

    event: PoissonSampledGaussian
    smallest_cohort: float = 0.0

    def __post_init__(self) -> None:
        if self.event.sampling_rate != 1.0:
            raise ValueError(f"sampling_rate is {self.event.sampling_rate}; a question is asked of all records, at 1.")

    def release(
        self, asked: Questionnaire, table: Table, keystream: Keystream, position: Position
    ) -> list[NoisyTotals]:
        """Sum, and add noise once.

        Args:
            asked: the questions.
            table: the client's records.
            keystream: the client's randomness.
            position: round and step of the first question's noise; each further question is a step later. Never the
                same twice under one secret key.

        Raises:
            TableError: the table lacks a column. No record has been read.
        """
        if missing := sorted(asked.columns - table.columns.keys()):
            raise TableError(f"the table has no column '{missing[0]}'; it has {', '.join(table.columns)}.")
        sigmas = asked.noise_multipliers(self.event.noise_multiplier)
        answers = []
        for number, (question, sigma) in enumerate(zip(asked.questions, sigmas, strict=True)):
            read = keystream.reader(Purpose.ANSWERS, Position(position.round, position.step + number))
            answers.append(self._noisy(question, table, deviation(question, sigma), read))
        return answers

    def _noisy(self, question: Question, table: Table, scale: float, read: Reader) -> NoisyTotals:
        exact = torch.from_numpy(question.totals(table).astype(np.float64))
        totals = add_lattice_noise(exact, scale, 1.0, read).numpy()
        records = np.array([question.records(Noisy(totals[group], scale)) for group in range(len(totals))])
        told = (records >= self.smallest_cohort) | (self.smallest_cohort == 0.0)
        return NoisyTotals(np.where(told[:, np.newaxis], totals, 0.0).astype(np.int64), told)


def combine(question: Question, sigmas: Sequence[float], answers: Sequence[NoisyTotals]) -> list[Noisy | None]:
    """Add up the noisy totals of one or more clients, by group: a post-processing.

    Args:
        question: the question that they answer.
        sigmas: noise multiplier of the question for each answer.
        answers: answers, at least one.

    Returns:
        For each group, the sum over the clients that tell of it; None: no client does.
    """
    found: list[Noisy | None] = []
    for group in range(len(question.groups)):
        told = [
            (a.totals[group], deviation(question, s)) for a, s in zip(answers, sigmas, strict=True) if a.told[group]
        ]
        totals = np.asarray(np.sum([row for row, _ in told], axis=0, dtype=np.float64))
        found.append(Noisy(totals, math.hypot(*(scale for _, scale in told))) if told else None)
    return found
