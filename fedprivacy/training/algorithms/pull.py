"""Attraction of a client's own model towards the global one by a penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_PULL = 1e6


def share_left(pull: float, learning_rate: float, steps: int) -> float:
    """Return the share of the distance to the global model that is left after `steps` steps of the pull alone.

    Each step keeps a share 1 - learning_rate * lambda of it; from lambda = 1 / learning_rate on it keeps none, so that
    a large lambda cannot make the steps diverge.
    """
    return float(max(0.0, 1.0 - learning_rate * pull) ** steps)


def pull_that_leaves(share: float, learning_rate: float, steps: int) -> float:
    """Return the lambda with which `share_left` is `share`, above 0."""
    return float((1.0 - share ** (1.0 / steps)) / learning_rate)


def pulled(own: Tensor, shared: Tensor, pull: float, learning_rate: float, steps: int) -> Tensor:
    """Take `steps` steps of gradient descent on lambda/2 |own - shared|^2, for vectors of any shape.

    The result is exactly `own` for lambda = 0 and exactly `shared` from lambda = 1 / learning_rate on.
    """
    return own.lerp(shared, 1.0 - share_left(pull, learning_rate, steps))
