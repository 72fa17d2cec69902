"""A small task and runs of it, for tests of the bridge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fedprivacy as fp
from fedprivacy.flower.wire.messages import Grant, Receipt
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.tasks import Recipe, Shard, ShardSource
from fedprivacy.training.algorithms import FedAvg, text_of
from fedprivacy.values.events import NeighbouringRelation


class Blobs:
    """Two Gaussian classes in the plane; client i holds 30 + i records."""

    name = "blobs"
    dataset = "blobs"
    metric = "accuracy"
    shard_sizes_public = True
    nominal_shard_size: int | None = None
    recipe = Recipe(rounds=3, local_steps=2, sampling_rate=0.5, clipping_norm=1.0, learning_rate=0.5, delta=1e-3)

    def model(self) -> nn.Module:
        model = nn.Linear(2, 2)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)  # every test starts at the same place, whatever ran before
        return model

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    def shard(self, source: ShardSource) -> Shard:
        return _blobs(30 + (source.partition_id or 0), seed=source.partition_id or 0)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        test = _blobs(200, seed=99)
        return {"accuracy": (model(test.inputs).argmax(1) == test.targets).float().mean().item()}

    def partition(self, num_partitions: int) -> str:
        return f"{num_partitions} blobs"


class PrivateSizes(Blobs):
    """The same with private shard sizes."""

    shard_sizes_public = False
    nominal_shard_size = 25


class DeepBlobs(Blobs):
    """With a body, a normalisation and a head; with views; and ten records of each client held out."""

    augmentation = fp.Augmentation(lambda points, chances: points * (0.5 + chances), draws=2)

    def model(self) -> nn.Module:
        torch.default_generator.manual_seed(0)  # of this device alone: ten times as fast
        return nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))

    def held_out(self, source: ShardSource) -> Shard:
        return _blobs(10, seed=50 + (source.partition_id or 0))


class Chain(DeepBlobs):
    """The same without a normalisation: clients of one cohort are stacked."""

    def model(self) -> nn.Module:
        torch.default_generator.manual_seed(0)  # of this device alone: ten times as fast
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


class PrivateChain(Chain):
    """The same with private shard sizes."""

    shard_sizes_public = False
    nominal_shard_size = 25


class Convolved(Blobs):
    """A model that is not stacked."""

    def model(self) -> nn.Module:
        torch.default_generator.manual_seed(0)  # of this device alone: ten times as fast
        return nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 2, 2), nn.Flatten())


class Uneven(Blobs):
    """Shards of very different sizes, in turns; in deployments too."""

    sizes = (16, 40, 150, 700)

    def shard(self, source: ShardSource) -> Shard:
        number = int(str(source.folder)[-1]) if source.folder else source.partition_id or 0
        return _blobs(self.sizes[number % len(self.sizes)], seed=number)


def _blobs(records: int, seed: int) -> Shard:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(2, (records,), generator=generator)
    return Shard(torch.randn(records, 2, generator=generator) + 2.0 * targets[:, None], targets)


BLOBS = Blobs()
"""The same task for many tests: what computes its gradients is prepared once."""


def plan_of(task: Any, **settings: Any) -> TrainingPlan:
    """A plan with `settings`, whose keys are spelt with underscores."""
    given = {"clients": 4, "seed": 1, "node-timeout": 1.0} | {k.replace("_", "-"): v for k, v in settings.items()}
    return TrainingPlan.of(given, task)


A_GRANT = Grant(
    run_id="run",
    client_id="client-0",
    round=3,
    attempt=1,
    steps=2,
    sampling_rate=0.5,
    noise_multiplier=1.5,
    relation=NeighbouringRelation.ZERO_OUT,
    unit="record",
    clipping_norm=0.3,
    clipping="flat",
    expected_batch_size=12.5,
    optimizer="sgd",
    learning_rate=2.0,
    momentum=0.0,
    weight_decay=0.0,
    algorithm=text_of(FedAvg()),
    augmentation_multiplicity=0,
    local_evaluation=False,
    earlier_runs=0,
    charged="",
    server_key="",
    signature="",
)

SHARED = {field.name for field in fields(Grant)} & {field.name for field in fields(Receipt)} - {"signature"}
A_RECEIPT = Receipt(**{name: getattr(A_GRANT, name) for name in SHARED}, update="", signature="")
"""The receipt that matches it."""
