"""Outputs that left an app, as a flat list of fields: arrays, and everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that left.

    Attributes:
        name: where it stood: `parameters.fc.weight`, `metrics.loss`, `arrays[2]`.
        array: its numbers, if it has more than one axis or place; else None.
        value: what it is, if it is no array: a number, a text.
    """

    name: str
    array: NDArray[Any] | None
    value: object = None

    @property
    def form(self) -> tuple[object, ...]:
        """The type and shape of an array, without its numbers; the type of anything else."""
        if self.array is not None:
            return "array", str(self.array.dtype), self.array.shape
        return (type(self.value).__name__,)

    @property
    def number(self) -> float | None:
        """The value as a number; None: it is none."""
        return float(self.value) if isinstance(self.value, int | float | np.number) else None


def fields_of(left: object, name: str = "") -> list[Field]:
    """The fields of what left, in their order."""
    if isinstance(left, Mapping):
        return [f for key, value in left.items() for f in fields_of(value, f"{name}.{key}" if name else str(key))]
    if isinstance(left, list | tuple):
        return [f for place, value in enumerate(left) for f in fields_of(value, f"{name}[{place}]")]
    if isinstance(left, Tensor):
        left = left.detach().cpu().numpy()
    if isinstance(left, np.ndarray) and left.ndim > 0:
        return [Field(name, left.copy())]
    return [Field(name, None, left.item() if isinstance(left, np.ndarray) else left)]
