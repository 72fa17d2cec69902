"""The end of what a test rejects."""

from __future__ import annotations

from collections.abc import Callable

_HALVINGS = 40


def last_rejected(rejected: Callable[[float], bool], low: float, high: float, halvings: int = _HALVINGS) -> float:
    """A parameter at which a claim is rejected, next to one at which it is not; `low` where nothing is rejected.

    Claims weaken from `low` to `high`: a mechanism that keeps one keeps all after it. So every rejected parameter is a
    lower bound on the true one, even if rejections are not in order: a smallest p-value over all weaker claims is one.

    Args:
        rejected: whether the claim with this parameter is.
        low: the strongest claim.
        high: the weakest claim.
        halvings: of the interval between them.
    """
    if not rejected(low):
        return low
    if rejected(high):
        return high
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
