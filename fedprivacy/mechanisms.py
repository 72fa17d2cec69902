"""Mechanisms: each adds its noise and states its event, in one place.

The sampling rate and the noise multiplier live in the event that the mechanism is built from. The mechanism samples
and adds noise with exactly those numbers, so what is accounted is what was executed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.events import CLIPPING_NORMS, PoissonSampledGaussian
from fedprivacy.keystream import Keystream, Position, Purpose
from fedprivacy.noise import ROUNDING_ALLOWANCE, add_lattice_noise, lattice_step
from fedprivacy.sampling import poisson_sample

ClippedSum = Callable[[NDArray[np.intp], float], torch.Tensor]
"""(indices of the sampled records, clipping norm C) -> sum of their vectors, each of norm at most C, shape [d]."""


@dataclass(frozen=True, slots=True)
class SampledGaussianSum:
    """The noisy sum of clipped vectors over a Poisson sample of the records.

    Formal guarantee: if the callable given to `release` returns a sum of one vector of norm at most `clipping_norm` for
    each index that it is given, each depending on its own record only, then one release is dominated by `event`. The
    noise is scaled to a sensitivity of C (1 + `ROUNDING_ALLOWANCE`), 0.02 % more than C. Rounding to the lattice uses
    at most half of the allowance. The other half is for sums that were rounded to float32 on the way; how far those
    stray, when a record more changes the rounding of all, is measured in tests and not proven.

    Attributes:
        event: sampling rate, noise multiplier and relation: what one release costs.
        clipping_norm: C, the largest Euclidean norm of one record's vector, within `CLIPPING_NORMS`.
    """

    event: PoissonSampledGaussian
    clipping_norm: float

    def __post_init__(self) -> None:
        low, high = CLIPPING_NORMS
        if not low <= self.clipping_norm <= high:
            raise ValueError(f"clipping_norm is {self.clipping_norm}; choose a number from {low:g} to {high:g}.")

    def release(self, clipped_sum: ClippedSum, records: int, keystream: Keystream, position: Position) -> torch.Tensor:
        """Sample, sum, add noise once. An empty sample is released like any other.

        Args:
            clipped_sum: sums the sampled records' clipped vectors.
            records: number of records in the shard.
            keystream: the client's randomness.
            position: round and local step; never the same twice under one secret key.

        Returns:
            The noisy sum, shape [d], on the device of the clipped sum: whole steps of the public lattice.
        """
        sample = poisson_sample(self.event.sampling_rate, records, keystream, position)
        total = clipped_sum(sample, self.clipping_norm)
        step = lattice_step(self.clipping_norm, total.numel())
        scale = self.event.noise_multiplier * self.clipping_norm * (1.0 + ROUNDING_ALLOWANCE)
        return add_lattice_noise(total, scale, step, keystream.reader(Purpose.NOISE, position))
