"""Standardising inputs by a private answer to a question of means and deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.figures import Estimate
from fedprivacy.questions.moments import Spread
from fedprivacy.tasks import Task
from fedprivacy.tasks.standardising import Standardise

_LEAST_SCALE = 1e-3
"""Smallest scale as a share of half the distance between the bounds: below it, a deviation is noise and inputs get
huge.
"""


def standardise_question(task: Task) -> Spread | None:
    """Return the question by whose answer a task standardises its inputs; None: it does not.

    Raises:
        QuestionError: the attribute is no question, another question, or one with groups.
    """
    question = getattr(task, "standardise", None)
    if question is None:
        return None
    if not isinstance(question, Spread) or question.by is not None:
        raise QuestionError(
            f"task {task.name}: standardise is a {type(question).__name__}; give fp.ask.mean_and_scale(...) without by."
        )
    return question


def standardiser(question: Spread, figures: Sequence[Estimate] = ()) -> Standardise:
    """Make the standardiser from the figures of an answer, or from the bounds where a figure is lost in the noise."""
    known: Mapping[str, float] = {figure.name: figure.value for figure in figures if figure.value is not None}
    means, scales = [], []
    for bounded in question.of:
        mean = known.get(f"mean of {bounded.column}", bounded.middle)
        deviation = known.get(f"standard deviation of {bounded.column}", bounded.half)
        means.append(mean)
        scales.append(deviation if deviation > _LEAST_SCALE * bounded.half else bounded.half)
    return Standardise([each.low for each in question.of], [each.high for each in question.of], means, scales)
