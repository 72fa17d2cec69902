"""Numbers as people's code returns them: Python's, numpy's, and arrays and tensors without a dimension."""

from __future__ import annotations

from numbers import Real


def number_of(value: object) -> Real | None:
    """Return a real number; of an array or a tensor without a dimension, its one element. None: it is no number.

    >>> import numpy as np
    >>> number_of(np.array(0.5)), number_of(np.array([0.5])), number_of("0.5")
    (0.5, None, None)
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, Real) else None
