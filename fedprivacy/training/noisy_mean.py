"""Noisy mean gradient: one release of a step, which every private training on records is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.gradients import Clipped, GradientEngine
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.adaptive import QuantileClipping
from fedprivacy.training.augment import Views
from fedprivacy.training.sampled import sampled_batches


@dataclass(frozen=True, slots=True)
class NoisyMean:
    """The gradient that a step may see.

    Formal guarantee: whatever the model's parameters are, `release` is one release of the mechanism's event, and its
    two results are a post-processing of it.

    Attributes:
        mechanism: mechanism that samples and adds noise, once for each release.
        expected_batch_size: the public divisor of the noisy sum: sampling rate times *public* shard size. The number
            of records that joined is private and never used as a divisor.
        adaptive: rule that moves the clipping norm from step to step, starting from the mechanism's; None: it stays.
        views: random views of each record, whose gradients are averaged before they are clipped (the engine must have
            the same number of views); None: the records as they are.
    """

    mechanism: SampledGaussianSum
    expected_batch_size: float
    adaptive: QuantileClipping | None = None
    views: Views | None = None

    def release(
        self, engine: GradientEngine, shard: Shard, norm: float, keystream: Keystream, position: Position
    ) -> tuple[Tensor, float]:
        """Release the mechanism once.

        Args:
            engine: gradient engine; the gradient is taken at its model's present parameters.
            shard: present records, on the model's device.
            norm: clipping norm C of this step.
            keystream: randomness of the shard's owner.
            position: round and step; never the same twice under one secret key.

        Returns:
            The noisy mean gradient, shape [d], float32, and the clipping norm of the next step.
        """
        released, following = self._noisy_sum(engine, shard, norm, keystream, position)
        return released.div_(self.expected_batch_size), following

    def _noisy_sum(
        self, engine: GradientEngine, shard: Shard, norm: float, keystream: Keystream, position: Position
    ) -> tuple[Tensor, float]:
        adaptive = self.adaptive

        def clipped_sum(sample: NDArray[np.intp], _: float) -> Tensor:
            parts = sampled_batches(shard, sample, engine.layout, self.views, keystream, position)
            clipped = Clipped.joined([engine.clip(*part, norm) for part in parts])
            return clipped.total if adaptive is None else adaptive.joined(clipped, norm)

        if adaptive is None:
            return self.mechanism.release(clipped_sum, len(shard.inputs), keystream, position), norm
        mechanism = replace(self.mechanism, clipping_norm=adaptive.sensitivity(norm))
        released = mechanism.release(clipped_sum, len(shard.inputs), keystream, position)
        return released[:-1], adaptive.next_norm(float(released[-1]), norm, self.expected_batch_size)
