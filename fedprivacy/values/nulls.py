"""Null, which stands for what JSON and the columns of a database cannot hold: infinity, and what is not a number.

Whoever reads a null back knows what it stood for: no bound or no limit (`or_infinite`), or no number (`or_nan`).
"""

from __future__ import annotations

import math


def finite_or_none(value: float | None) -> float | None:
    """A number as it is written: what is not finite becomes null, and what is missing already stays so."""
    return value if value is not None and math.isfinite(value) else None


def or_infinite(value: float | None) -> float:
    """An epsilon or a budget as it is read back: null is one without a bound."""
    return math.inf if value is None else value


def or_nan(value: float | None) -> float:
    """A measurement as it is read back: null is a loss that diverged, or an average of nothing."""
    return math.nan if value is None else value
