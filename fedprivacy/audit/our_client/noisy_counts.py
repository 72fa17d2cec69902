"""The noisy count that moves the clipping norm of adaptive clipping, read from where the norm has moved."""

from __future__ import annotations

import math

from fedprivacy.flower.wire.messages import Grant
from fedprivacy.training.adaptive import QuantileClipping


def count_weight(adaptive: QuantileClipping, clipping_norm: float) -> float:
    """Return the additional weight in the release of a record within the clipping norm, over one beyond it."""
    return 2.0 * math.sqrt(adaptive.sensitivity(clipping_norm) ** 2 - clipping_norm**2)


def noisy_count(adaptive: QuantileClipping, grant: Grant, next_norm: float) -> float:
    """The coordinate of the release that moved the norm of a grant's only step, as long as it was not limited."""
    within = adaptive.quantile - math.log(next_norm / grant.clipping_norm) / adaptive.learning_rate
    return (within - 0.5) * count_weight(adaptive, grant.clipping_norm) * grant.expected_batch_size
