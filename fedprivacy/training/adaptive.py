"""Adaptive clipping: the clipping norm follows a quantile of the gradients' norms (Andrew et al. 2021).

The count of records within the clipping norm is released together with the sum of gradients, as one more coordinate of
the same vector. One Poisson sample, one Gaussian noise, one event: charging the count as an event of its own would be
wrong, for it shares its sample with the sum, and two separately subsampled mechanisms are not that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedprivacy.gradients import clipping
from fedprivacy.values.events import CLIPPING_NORMS

if TYPE_CHECKING:  # every `--help` asks for the names of the clippings, and need not wait for torch
    from torch import Tensor

    from fedprivacy.gradients import Clipped


@dataclass(frozen=True, slots=True)
class QuantileClipping:
    """Rule that moves the clipping norm C towards a quantile of the norms.

    Formal guarantee: one record's part of `append_count` has Euclidean norm at most `sensitivity(C)`. So a Gaussian
    mechanism with that clipping norm releases sum and count for its one event. The next clipping norm is a
    post-processing.

    Attributes:
        quantile: the share of records that the clipping norm should not clip, in [0, 1].
        learning_rate: distance that log C moves when all records are on one side.
        share: share of the mechanism's privacy that goes to the count, in (0, 1): with noise multiplier sigma, the sum
            gets noise as from sigma / sqrt(1 - share) and the count a standard deviation of sigma / (2 sqrt(share)).
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 <= self.quantile <= 1.0:
            raise ValueError(f"quantile is {self.quantile}; choose a number from 0 to 1.")
        if not self.learning_rate > 0.0:
            raise ValueError(f"learning_rate is {self.learning_rate}; choose a positive number.")
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share is {self.share}; choose a number between 0 and 1.")

    def sensitivity(self, clipping_norm: float) -> float:
        """Largest norm of one record's gradient, clipped to C, with its count."""
        return clipping_norm / math.sqrt(1.0 - self.share)

    def append_count(self, clipped: Clipped, clipping_norm: float) -> Tensor:
        """Append the centred count to the sum of gradients clipped to C, as one more coordinate, shape [d + 1].

        A record counts 1/2 within the clipping norm and -1/2 beyond it: 0 and 1 would take twice the sensitivity.
        """
        import torch

        count = self.centre_count(clipped.within(clipping_norm), clipped.records, clipping_norm)
        return torch.cat([clipped.total, clipped.total.new_tensor([count])])

    def centre_count(self, count_within: int, records: int, clipping_norm: float) -> float:
        """Return the coordinate of the count, given the number of records within the clipping norm C."""
        return float(count_within - 0.5 * records) * self.weight(clipping_norm)

    def next_norm(self, noisy_count: float, clipping_norm: float, expected_batch_size: float) -> float:
        """Compute the next step's clipping norm, within `CLIPPING_NORMS`; the count is the last released coordinate."""
        within = 0.5 + noisy_count / (self.weight(clipping_norm) * expected_batch_size)
        moved = clipping_norm * math.exp(-self.learning_rate * (min(max(within, 0.0), 1.0) - self.quantile))
        # The mechanism's own norm, `sensitivity`, must stay in range too.
        low, high = CLIPPING_NORMS[0], CLIPPING_NORMS[1] / self.sensitivity(1.0)
        return min(max(moved, low), high)

    def weight(self, clipping_norm: float) -> float:
        """Weight of the count in the vector: C^2 + (weight / 2)^2 is the square of the sensitivity."""
        return 2.0 * clipping_norm * math.sqrt(self.share / (1.0 - self.share))


ADAPTIVE: dict[str, Callable[[], QuantileClipping]] = {"adaptive": QuantileClipping}
"""Rules that move the clipping norm, by the name of the clipping that lets it move."""

CLIPPINGS = clipping.CLIPPINGS | dict.fromkeys(ADAPTIVE, clipping.FlatClipping)
"""Factories of clippings by name: those with a fixed norm, and those whose norm moves."""
