"""Tolerance for an epsilon that was stated, beside what `fedprivacy.accounting.pld` computes anew."""

from __future__ import annotations

TOLERANCE = 1e-3
"""Relative tolerance between accountants, which round differently."""


def too_low(stated: float, spent: float) -> bool:
    """Return whether a stated epsilon is less than what was spent, by more than accountants may differ."""
    return not stated >= spent * (1.0 - TOLERANCE) - 1e-6
