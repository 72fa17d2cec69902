"""Standardising a task's inputs before its model, by a private answer to a question of means and deviations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.figures import Estimate
from fedprivacy.questions.moments import Spread
from fedprivacy.tasks import Task

STANDARDISE = "standardise"
"""Name of the standardiser's numbers, beside those of a model."""

_LEAST_SCALE = 1e-3
"""Smallest scale as a share of half the distance between the bounds: below it, a deviation is noise and inputs get
huge.
"""


class Standardise(nn.Module):
    """Layer that clips the first inputs of each record to their bounds, subtracts their mean and divides by their
    scale.

    A record's new inputs are a function of the record and of public numbers alone, element by element. NaN stays NaN.

    Args:
        low, high: public bounds, one for each input.
        mean, scale: mean and scale of each input; from a private release, or chosen.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(
        self, low: Sequence[float], high: Sequence[float], mean: Sequence[float], scale: Sequence[float]
    ) -> None:
        super().__init__()
        for name, values in (("low", low), ("high", high), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    @property
    def numbers(self) -> dict[str, list[float]]:
        """Return the arguments of the constructor."""
        return {name: values.tolist() for name, values in self.named_buffers()}

    def forward(self, inputs: Tensor) -> Tensor:
        """Standardise the first of the inputs [..., inputs], in their own type."""
        count = len(self.low)
        first = ((inputs[..., :count].double().clamp(self.low, self.high) - self.mean) / self.scale).to(inputs.dtype)
        # One NaN for all: in bfloat16 its sign would depend on its place.
        first = first.masked_fill(first.isnan(), math.nan)
        return torch.cat([first, inputs[..., count:]], -1)


def standardise_question(task: Task) -> Spread | None:
    """Return the question by whose answer a task standardises its inputs; None: it does not.

    Raises:
        QuestionError: the attribute is no question, another question, or one with groups.
    """
    question = task.standardise
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


def why_unsuited(inputs: Tensor, columns: Sequence[str]) -> str:
    """Explain why the first of such inputs cannot be these columns, by shape and type alone; empty: they can."""
    if inputs.dim() == 2 and inputs.shape[1] >= len(columns) and inputs.is_floating_point():
        return ""
    shape = ", ".join(["records", *map(str, inputs.shape[1:])])
    return (
        f"the shard's inputs are of shape [{shape}] and type {inputs.dtype}; give floating-point numbers of shape "
        f"[records, inputs], the first of which are {', '.join(columns)}"
    )
