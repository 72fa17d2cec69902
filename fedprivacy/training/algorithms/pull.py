"""Attraction of a client's own model towards the global one by a penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_PULL = 1e6


def pulled(own: Tensor, shared: Tensor, pull: float, learning_rate: float, steps: int) -> Tensor:
    """Take `steps` steps of gradient descent on lambda/2 |own - shared|^2, for vectors of any shape.

    Each step keeps a share 1 - learning_rate * lambda of the distance; from lambda = 1 / learning_rate on it keeps
    none, so that a large lambda cannot make the steps diverge. The result is exactly `own` for lambda = 0 and exactly
    `shared` from lambda = 1 / learning_rate on.
    """
    kept = max(0.0, 1.0 - learning_rate * pull) ** steps
    return own.lerp(shared, 1.0 - kept)
