"""Standardising: what a task's inputs become before its model sees them, by numbers that are public."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

STANDARDISE = "standardise"
"""What its numbers are called, beside those of a model."""


class Standardise(nn.Module):
    """Moves the first inputs of each record to their bounds, takes their mean off and divides by their scale.

    A record's inputs become a function of the record and of public numbers alone, element by element. What is NaN stays
    so.

    Args:
        low, high: public bounds, one for each input.
        mean, scale: of each; out of a private release, or chosen.
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
        """The arguments that it was made of."""
        return {name: values.tolist() for name, values in self.named_buffers()}

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs [batch, inputs], of which the first are standardised, in their own type."""
        count = len(self.low)
        first = ((inputs[:, :count].double().clamp(self.low, self.high) - self.mean) / self.scale).to(inputs.dtype)
        first = first.masked_fill(first.isnan(), math.nan)  # whose sign would tell its place, in bfloat16
        return torch.cat([first, inputs[:, count:]], 1)


def unsuited(inputs: Tensor, columns: Sequence[str]) -> str:
    """Why the first of such inputs cannot be these columns, by shape and type alone; empty: they can."""
    if inputs.dim() == 2 and inputs.shape[1] >= len(columns) and inputs.is_floating_point():
        return ""
    shape = ", ".join(["records", *map(str, inputs.shape[1:])])
    return (
        f"the shard's inputs are of shape [{shape}] and type {inputs.dtype}; give floating-point numbers of shape "
        f"[records, inputs], the first of which are {', '.join(columns)}"
    )
