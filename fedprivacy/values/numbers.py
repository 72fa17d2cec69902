"""Numbers as people's code returns them, and as JSON and the columns of a database write them.

Code returns Python's and numpy's numbers, and arrays and tensors without a dimension: `number_of` reads them all.
JSON and databases write null for infinity and NaN, which they cannot hold. The reader of a null knows what it stood
for: no bound or no limit (`or_infinite`, `read_unbounded`), or NaN (`read_measured`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from numbers import Real
from typing import Any


def number_of(value: object) -> Real | None:
    """Return a real number; of an array or a tensor without a dimension, its one element. None: it is no number.

    >>> import numpy as np
    >>> number_of(np.array(0.5)), number_of(np.array([0.5])), number_of("0.5")
    (0.5, None, None)
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, Real) else None


def finite_or_none(value: float | None) -> float | None:
    """Return a number as it is written: infinity, NaN and None become None."""
    return value if value is not None and math.isfinite(value) else None


def plain(value: Any) -> dict[str, Any]:
    """Return a value as it is written: nested fields by name, and None for what is not finite.

    >>> plain({"loss": math.nan, "budgets": (3.0, math.inf)})
    {'loss': None, 'budgets': [3.0, None]}
    """
    held = {name: getattr(value, name) for name in value.__dataclass_fields__} if is_dataclass(value) else value
    return {name: item if type(item) in _AS_IT_IS else _plain(item) for name, item in held.items()}


_AS_IT_IS = {int, str, bool, type(None)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return plain(value) if is_dataclass(value) or isinstance(value, Mapping) else value


def or_infinite(value: float | None) -> float:
    """Return an epsilon or a budget as it is read back: None becomes infinity."""
    return math.inf if value is None else value


def read_unbounded(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a value as they are read back, where every None is an epsilon or budget without a bound."""
    return {name: or_infinite(value) for name, value in written.items()}


def read_measured(written: Mapping[str, float | None]) -> dict[str, float]:
    """Return measurements as they are read back: None becomes NaN, a loss that diverged or an average of nothing."""
    return {name: math.nan if value is None else value for name, value in written.items()}
