"""The arrays of this package, by what they hold, and values made of arrays that have a row for each history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
ComplexArray = NDArray[np.complex128]


class Aligned:
    """A dataclass with slots, all of whose fields are arrays of as many rows."""

    __slots__: ClassVar[Any] = ()

    def take(self, rows: IntArray) -> Self:
        """Some of the rows."""
        return type(self)(*(getattr(self, name)[rows] for name in self.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of the first, then those of the others."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))
