"""DP-SGD (Abadi et al. 2016): sample, clip, sum, add noise, step; the result is parameters and the events they cost."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.algorithms import FEDAVG, Algorithm
from fedprivacy.training.local_round import NOTHING_KEPT, Kept, LocalSteps
from fedprivacy.training.noisy_mean import NoisyMean
from fedprivacy.training.optimizers import Optimizer
from fedprivacy.values.events import PoissonSampledGaussian


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
