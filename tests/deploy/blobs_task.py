"""A task of a user's own, in one file: on which side of a line a point lies."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.tasks import Recipe, Shard, ShardSource


class Sides:
    """Two clients have eighty points each, in `points.npy`."""

    name = "sides"
    dataset = "sides"
    metric = "accuracy"
    recipe = Recipe(rounds=2, epsilon=3.0, delta=1e-3)
    shard_sizes_public = True
    nominal_shard_size = None

    def model(self):
        return nn.Linear(2, 2)

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="none")

    def shard(self, source: ShardSource):
        part = np.random.default_rng(source.partition_id).normal(size=(80, 2))
        return self._labelled(part if source.folder is None else np.load(source.folder / "points.npy"))

    def evaluate(self, model):
        public = self._labelled(np.random.default_rng(99).normal(size=(200, 2)))
        return {"accuracy": (model(public.inputs).argmax(1) == public.targets).float().mean().item()}

    def partition(self, num_partitions):
        return f"normal points, {num_partitions} parts"

    @staticmethod
    def _labelled(points):
        inputs = torch.as_tensor(points, dtype=torch.float32)
        return Shard(inputs, (inputs.sum(1) > 0).long())
