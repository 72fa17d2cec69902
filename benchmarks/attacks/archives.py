"""Records of real people that attacks are tried on, by tests and by `benchmarks.attacks`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.attacks.inversion import HARDLY_ANY_NOISE, Inverted, inverted
from fedprivacy.tasks import Shard, ShardSource, Task

_DIGIT = 7
"""Which of MNIST's records the client holds; any will do."""


class Archive(Task):
    """Records of a file, scaled to [0, 1], and a network with one hidden layer of 128 units."""

    activation: type[nn.Module]
    classes: int

    def __init__(self, file: Path, largest: float) -> None:
        with np.load(file) as archive:
            inputs = torch.from_numpy(archive["X"]).float() / largest
            self.records = Shard(inputs, torch.from_numpy(archive["y"]).long())

    def model(self) -> nn.Module:
        """The network."""
        features = self.records.inputs.shape[1]
        return nn.Sequential(nn.Linear(features, 128), self.activation(), nn.Linear(128, self.classes))

    def shard(self, source: ShardSource) -> Shard:
        """All records."""
        return self.records


class Locations(Archive):
    """Location-30."""

    activation, classes = nn.Tanh, 30


class Scans(Archive):
    """MNIST."""

    activation, classes = nn.ReLU, 10


def inversion(data: Path, noise_multiplier: float) -> tuple[Inverted, Inverted]:
    """A digit from an update without noise, and from one with it."""
    task = Scans(data / "mnist.npz", 255.0)
    digit = Shard(task.records.inputs[_DIGIT : _DIGIT + 1], task.records.targets[_DIGIT : _DIGIT + 1])
    without = inverted(task, digit, noise_multiplier=HARDLY_ANY_NOISE)
    return without, inverted(task, digit, noise_multiplier=noise_multiplier)
