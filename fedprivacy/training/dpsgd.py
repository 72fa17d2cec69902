"""DP-SGD (Abadi et al. 2016): sample, clip, sum, add noise, step; the result is parameters and the events they cost.

Every private training on records is made of noisy mean gradients, one release for each step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.gradients import Clipped, GradientEngine, trainable_parameters
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.adaptive import QuantileClipping
from fedprivacy.training.algorithms import FEDAVG, Algorithm
from fedprivacy.training.batches import Views, sampled_batches
from fedprivacy.training.local_round import NOTHING_KEPT, Kept, LocalSteps
from fedprivacy.training.optimizers import Optimizer
from fedprivacy.values.events import PoissonSampledGaussian


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

    @property
    def usual_batch(self) -> float:
        """The number of records that few batches exceed: the expected one and twice its standard deviation."""
        return self.expected_batch_size + 2.0 * math.sqrt(
            self.expected_batch_size * (1.0 - self.mechanism.sampling_rate)
        )

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
            clipped = Clipped.join([engine.clip(*part, norm, usual=self.usual_batch) for part in parts])
            return clipped.total if adaptive is None else adaptive.append_count(clipped, norm)

        if adaptive is None:
            return self.mechanism.release(clipped_sum, len(shard.inputs), keystream, position), norm
        mechanism = replace(self.mechanism, clipping_norm=adaptive.sensitivity(norm))
        released = mechanism.release(clipped_sum, len(shard.inputs), keystream, position)
        return released[:-1], adaptive.next_norm(float(released[-1]), norm, self.expected_batch_size)


@dataclass(frozen=True, slots=True)
class PrivateUpdate:
    """The release of DP-SGD: parameters after the last local step, and the events that produced them.

    Formal guarantee: given the starting point, `parameters` and `clipping_norm` are a post-processing of `steps`
    adaptive releases of `event`, and so is `kept`. Nothing else in this object depends on the shard.

    Attributes:
        parameters: trained parameters, by name, as the server averages them.
        event: event of each release.
        steps: number of releases.
        clipping_norm: clipping norm of a next step; it changes only with adaptive clipping.
        kept: vector that the client keeps for its next round, shape [d]; None: nothing.
    """

    parameters: dict[str, Tensor]
    event: PoissonSampledGaussian
    steps: int
    clipping_norm: float
    kept: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DPSGD:
    """Local training with record-level differential privacy.

    Attributes:
        gradient: the noisy mean gradient that is released once for each local step.
        optimizer: moves the parameters by the noisy mean gradients: post-processing.
        proximal_mu: FedProx's pull towards the global model (Li et al. 2020), added after the noise: post-processing.
        algorithm: federated algorithm, which fixes the starting point and uses the result: post-processing.
    """

    gradient: NoisyMean
    optimizer: Optimizer
    proximal_mu: float = 0.0
    algorithm: Algorithm = FEDAVG

    def train(
        self,
        engine: GradientEngine,
        shard: Shard,
        *,
        steps: int,
        round: int,
        keystream: Keystream,
        before: Kept = NOTHING_KEPT,
    ) -> PrivateUpdate:
        """Take `steps` local steps from the model's present parameters and release the result.

        Args:
            engine: gradient engine; its model is the starting point, and its trainable parameters move.
            shard: the client's records, on the model's device.
            steps: number of local steps, >= 1.
            round: number of the round, which selects the randomness.
            keystream: the client's randomness.
            before: vector that the client kept of its last round, and the server's control.
        """
        mechanism, shard = self.gradient.mechanism, shard.present()
        norm = mechanism.clipping_norm

        def noisy_mean(step: int) -> Tensor:
            nonlocal norm
            released, norm = self.gradient.release(engine, shard, norm, keystream, Position(round, step))
            return released

        local = LocalSteps(self.optimizer, self.proximal_mu, self.algorithm)
        update = local.alone(engine.model, noisy_mean, steps, before)
        parameters = {name: p.clone() for name, p in trainable_parameters(engine.model).items()}
        return PrivateUpdate(parameters, mechanism.event, steps, norm, update.kept)
