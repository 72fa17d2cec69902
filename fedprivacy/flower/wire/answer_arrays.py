"""Answers on the wire: for each question an array of whole numbers, see `NoisyTotals.rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals

Arrays = Mapping[str, NDArray[Any]]


def as_arrays(answers: Sequence[NoisyTotals]) -> dict[str, NDArray[np.int64]]:
    """Answers to the questions of one questionnaire, in their order."""
    return {_name(number): answer.rows for number, answer in enumerate(answers)}


def blank(asked: Questionnaire) -> dict[str, NDArray[np.int64]]:
    """Arrays of zeros in the shapes that answers have: public."""
    shapes = [(len(question.groups), 1 + question.width) for question in asked.questions]
    return {_name(number): np.zeros(shape, dtype=np.int64) for number, shape in enumerate(shapes)}


def of_arrays(asked: Questionnaire, arrays: Arrays) -> list[NoisyTotals]:
    """The inverse of `as_arrays`, of arrays in the shapes of `blank`."""
    return [NoisyTotals.from_rows(arrays[_name(number)]) for number, _ in enumerate(asked.questions)]


def _name(number: int) -> str:
    return f"answer-{number}"
