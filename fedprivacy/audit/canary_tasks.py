"""Tasks whose gradients are the records themselves, at whatever parameters: a release shows which records joined.

Both have as many layers, of the same sizes, as the model whose training is audited, so that what forgets a layer or
treats layers apart shows. Parameters begin at zero, where a float32 difference of parameters is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fedprivacy.tasks import Shard, ShardSource, Task
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.unit import Unit


class _ReadableTask(Task):
    """A task without records of its own.

    Args:
        sizes: parameters of each layer.
        relation: of the guarantee; whether the number of records is public follows from it.
        unit: of privacy.
    """

    def __init__(self, sizes: Sequence[int], relation: NeighbouringRelation, unit: Unit) -> None:
        self.sizes, self.unit = tuple(sizes), unit
        self.shard_sizes_public = relation is NeighbouringRelation.ZERO_OUT
        self.nominal_shard_size = 1

    def shard(self, source: ShardSource) -> Shard:
        """Refuse: the auditor brings the records."""
        raise NotImplementedError("canaries have no shard of their own")


class SparseCanaries(_ReadableTask):
    """A record is one coordinate of each layer, with a value: inputs [records, layers], targets the same shape."""

    name = dataset = "sparse-canaries"

    def model(self) -> nn.Module:
        """One table for each layer, a row for each coordinate."""
        return _Layers(nn.Embedding(size, 1) for size in self.sizes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The named parameters times the values: its gradient is the values, in their places."""
        return (outputs * targets).sum(1)


class DenseCanaries(_ReadableTask):
    """A record is a vector of all coordinates: inputs [records, d]; targets count for nothing."""

    name = dataset = "dense-canaries"

    def model(self) -> nn.Module:
        """One linear map to a number for each layer."""
        return _Layers(nn.Linear(size, 1, bias=False) for size in self.sizes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The parameters times the record: its gradient is the record."""
        return outputs.sum(1)


class _Layers(nn.Module):
    """Layers side by side, each of which reads its own part of a record: one column, or as many as it has weights."""

    def __init__(self, layers: Iterable[nn.Embedding | nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, records: Tensor) -> Tensor:
        """Shape [records, layers]."""
        widths = [layer.in_features if isinstance(layer, nn.Linear) else 1 for layer in self.layers]
        parts = records.split(widths, dim=1)
        return torch.cat(
            [layer(part).reshape(len(records), 1) for layer, part in zip(self.layers, parts, strict=True)], 1
        )
