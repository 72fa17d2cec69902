"""DP-SGD (Abadi et al. 2016): sample, clip, sum, add noise, step; returns parameters and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.events import PoissonSampledGaussian
from fedprivacy.gradients import clipped_gradient_sum, flat_parameters, trainable_parameters
from fedprivacy.gradients.engine import Loss
from fedprivacy.keystream import Keystream, Position
from fedprivacy.mechanisms import SampledGaussianSum


@dataclass(frozen=True, slots=True)
class Shard:
    """A client's data: one row for each record.

    Attributes:
        inputs: shape [records, ...].
        targets: shape [records, ...].
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError("The shard's inputs and targets differ in length; give one target for each record.")

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Shard:
        """The same shard on `device`."""
        return Shard(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, slots=True)
class PrivateUpdate:
    """What DP-SGD releases: parameters after the last local step, and the events that produced them.

    Formal guarantee: given the starting point, `parameters` is a post-processing of `steps` adaptive releases of
    `event`. Nothing else in this object depends on the shard.
    """

    parameters: dict[str, Tensor]
    event: PoissonSampledGaussian
    steps: int


@dataclass(frozen=True, slots=True)
class DPSGD:
    """Local training with record-level differential privacy.

    Attributes:
        mechanism: samples, and adds noise once for each local step.
        expected_batch_size: the public divisor of the noisy sum: sampling rate times *public* shard size. The number
            of records that really joined is private and divides nothing.
        learning_rate: step size.
        momentum: heavy-ball momentum of the noisy gradients, in [0, 1): post-processing.
        proximal_mu: FedProx's pull towards the global model (Li et al. 2020), added after the noise: post-processing.
    """

    mechanism: SampledGaussianSum
    expected_batch_size: float
    learning_rate: float
    momentum: float = 0.0
    proximal_mu: float = 0.0

    def train(
        self, model: nn.Module, loss: Loss, shard: Shard, *, steps: int, round: int, keystream: Keystream
    ) -> PrivateUpdate:
        """Take `steps` local steps from the model's present parameters; the model is changed in place.

        Args:
            model: starting point; trainable parameters are updated.
            loss: one loss for each record.
            shard: the client's records, on the model's device.
            steps: local steps, >= 1.
            round: the round, which names the randomness.
            keystream: the client's randomness.
        """

        def clipped_sum(sample: NDArray[np.intp], clipping_norm: float) -> Tensor:
            rows = torch.from_numpy(sample).to(shard.inputs.device)
            return clipped_gradient_sum(model, loss, shard.inputs[rows], shard.targets[rows], clipping_norm)

        start = flat_parameters(model)
        position, velocity = start.clone(), torch.zeros_like(start)
        for step in range(1, steps + 1):
            noisy_sum = self.mechanism.release(clipped_sum, len(shard), keystream, Position(round, step))
            gradient = noisy_sum / self.expected_batch_size + self.proximal_mu * (position - start)
            velocity = self.momentum * velocity + gradient
            position = position - self.learning_rate * velocity
            _assign(model, position)
        return PrivateUpdate(
            {name: p.clone() for name, p in trainable_parameters(model).items()}, self.mechanism.event, steps
        )


def _assign(model: nn.Module, flat: Tensor) -> None:
    torch.nn.utils.vector_to_parameters(flat, [p for p in model.parameters() if p.requires_grad])
