"""Standardising inputs by a private answer: from a question of means and deviations to what a model's inputs become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedprivacy.questions.errors import QuestionError
from fedprivacy.questions.figures import Figure
from fedprivacy.questions.moments import Spread
from fedprivacy.tasks import Task
from fedprivacy.tasks.standardising import Standardise

_LEAST_SCALE = 1e-3
"""Of half of the distance between the bounds: a smaller deviation is noise, and would make numbers huge."""


def standardise_question(task: Task) -> Spread | None:
    """The question by whose answer a task standardises its inputs; None: it does not.

    Raises:
        QuestionError: it is another question, of groups, or none.
    """
    question = getattr(task, "standardise", None)
    if question is None:
        return None
    if not isinstance(question, Spread) or question.by is not None:
        raise QuestionError(
            f"task {task.name}: standardise is a {type(question).__name__}; give fp.ask.mean_and_scale(...) without by."
        )
    return question


def standardiser(question: Spread, figures: Sequence[Figure] = ()) -> Standardise:
    """What inputs become, by the figures of an answer; where the noise leaves nothing to be said, by the bounds."""
    known: Mapping[str, float] = {figure.name: figure.value for figure in figures if figure.value is not None}
    means, scales = [], []
    for of in question.of:
        mean = known.get(f"mean of {of.column}", of.middle)
        deviation = known.get(f"standard deviation of {of.column}", of.half)
        means.append(mean)
        scales.append(deviation if deviation > _LEAST_SCALE * of.half else of.half)
    return Standardise([of.low for of in question.of], [of.high for of in question.of], means, scales)
