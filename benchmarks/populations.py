"""The users whose training simulations are timed on: models of five sizes, and records made up from a seed.

Every user holds 50 records and takes five local steps on (expected) batches of ten. What is measured is an engine, not
its data: all records come from one pool of random tensors, users hold views of it, and users who are 200 apart the
same ones. So a large population takes no more memory for records than a small one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

import fedprivacy as fp
from benchmarks.gradient_models import tanh_cnn

RECORDS = 50
"""Of each user."""

BATCH, STEPS = 10, 5
SAMPLING_RATE = BATCH / RECORDS
CLIPPING_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.1

_POOL = 10_000
"""Records that there are."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all contenders simulate.

    Attributes:
        name: of the model, and of the population where it is not the usual one.
        build: makes the model.
        shape: of one record.
        classes: how many.
        rounds: timed in each turn of a contender that takes milliseconds for a client update ...
        slow_rounds: ... and of one that takes ten times as long.
        turns: at most, ...
        slow_turns: ... and of a slow contender.
        users: in the population.
        cohort: users in each round.
        device: where models and records are, of contenders that can choose.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    rounds: int
    slow_rounds: int
    turns: int = 5
    slow_turns: int = 1
    users: int = 1_000
    cohort: int = 50
    device: str = "cpu"

    def model(self) -> nn.Module:
        """The model, with the same parameters every time."""
        torch.default_generator.manual_seed(0)  # of this device alone: ten times as fast
        return self.build()

    def records(self, user: int) -> tuple[Tensor, Tensor]:
        """A user's inputs, shape [50, ...], and classes, shape [50]."""
        inputs, targets = _pool(self.shape, self.classes, self.device)
        first = user * RECORDS % _POOL
        return inputs[first : first + RECORDS], targets[first : first + RECORDS]


@cache
def _pool(shape: tuple[int, ...], classes: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(_POOL, *shape, generator=generator)
    return inputs.to(device), torch.randint(classes, (_POOL,), generator=generator).to(device)


def logistic_regression() -> nn.Module:
    """Ten classes, 32 features: 330 parameters."""
    return nn.Linear(32, 10)


def perceptron() -> nn.Module:
    """Two classes, 32 features, 64 hidden units: 2,242 parameters."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))


def pfl_cnn() -> nn.Module:
    """The network of pfl-research's benchmark on CIFAR-10: 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("lr", logistic_regression, (32,), 10, rounds=10, slow_rounds=3),
        Setting("mlp", perceptron, (32,), 2, rounds=10, slow_rounds=3),
        Setting("cnn", tanh_cnn, (1, 28, 28), 10, rounds=5, slow_rounds=2),
        Setting("pfl-cnn", pfl_cnn, (3, 32, 32), 10, rounds=1, slow_rounds=1, turns=1),
        Setting(
            "lr-10k",
            logistic_regression,
            (32,),
            10,
            rounds=3,
            slow_rounds=1,
            turns=1,
            users=10_000,
            cohort=1_000,
        ),
    )
}
"""What is measured unless told otherwise."""


class Population(fp.Task):
    """A setting as a task of this project's."""

    recipe = fp.Recipe(
        local_steps=STEPS, sampling_rate=SAMPLING_RATE, clipping_norm=CLIPPING_NORM, learning_rate=LEARNING_RATE
    )

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def model(self) -> nn.Module:
        """The setting's."""
        return self.setting.model()

    def shard(self, source: fp.ShardSource) -> fp.Shard:
        """The user's records."""
        assert source.partition_id is not None
        return fp.Shard(*self.setting.records(source.partition_id))

    def partition(self, num_partitions: int) -> str:
        """Users hold what `Setting.records` says."""
        return f"{num_partitions} users of {RECORDS} records"
