"""What a history costs, by two accountants that share no code."""

from __future__ import annotations

from fedprivacy.accounting import contour, pld
from fedprivacy.values.events import History, PoissonSampledGaussian

TOLERANCE = 1e-3
"""By how much two accountants may differ, relative."""


def recomputed(history: History, delta: float) -> float:
    """The epsilon of a history at `delta`: the smaller of two upper bounds."""
    if not history:
        return 0.0
    bound = pld.epsilon(history, delta)
    if all(isinstance(event, PoissonSampledGaussian) for event in history):
        bound = min(bound, contour.epsilon(history, delta))
    return bound


def too_low(stated: float, spent: float) -> bool:
    """Whether what is said is less than what was spent, by more than two accountants may differ."""
    return not stated >= spent * (1.0 - TOLERANCE) - 1e-6
