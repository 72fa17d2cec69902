"""Array types of this package, and base of dataclasses whose arrays have a row for each history."""

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
    """Base of a dataclass with slots whose fields are arrays with the same number of rows."""

    __slots__: ClassVar[Any] = ()

    def take(self, rows: IntArray) -> Self:
        """Select rows."""
        return type(self)(*(getattr(self, name)[rows] for name in self.__slots__))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the rows of several values."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))
