"""Tasks whose gradients the auditor chooses: the gradient of a record is the record itself, whatever the parameters.

A release is then the sum of the records that joined, clipped, plus noise. A record that points in a direction of its
own shows whether it joined, a record of zeros contributes nothing, and several steps can be compared though each moves
the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedprivacy.audit.our_client.audited_client import Audited, Parameters
from fedprivacy.gradients import trainable_parameters
from fedprivacy.tasks import Augmentation, Shard, ShardSource, Task
from fedprivacy.values.events import NeighbouringRelation

_MOST_COORDINATES = 4000
"""Maximum number of coordinates of a known task's model; a larger model is scaled down, layer by layer."""


SAME_VIEWS = Augmentation(lambda records, chances: records, draws=1)
"""Every view is the record, so that its gradient is known in runs that take views, too."""


class Known(Task):
    """A task whose records are their gradients.

    Args:
        sizes: of its layers.
        relation: that its guarantee is for: it makes shard sizes public, or not.
        dataset: names the records: under the name of another task's, its clients share that one's randomness.
    """

    name, metric = "known", "output"
    augmentation = SAME_VIEWS

    def __init__(self, sizes: Sequence[int], relation: NeighbouringRelation, dataset: str) -> None:
        self.sizes = tuple(sizes)
        self.shard_sizes_public = relation is not NeighbouringRelation.ADD_OR_REMOVE_ONE
        self.nominal_shard_size = None if self.shard_sizes_public else 100
        self.dataset = dataset

    def model(self) -> nn.Module:
        """One linear layer for each part of a record."""
        return _Sides(self.sizes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The output itself."""
        return outputs[:, 0]

    def shard(self, source: ShardSource) -> Shard:
        """None of its own."""
        return shard_of(torch.zeros(0, sum(self.sizes)))


class _Sides(nn.Module):
    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sides = nn.ModuleList(nn.Linear(size, 1, bias=False) for size in sizes)
        self._sizes = list(sizes)

    def forward(self, records: Tensor) -> Tensor:
        outputs = [side(part) for side, part in zip(self.sides, records.split(self._sizes, 1), strict=True)]
        return torch.stack(outputs).sum(0)


def known_of(audited: Audited) -> Known:
    """A known task with layers of the sizes of the audited task's, or smaller ones in their place."""
    sizes = [parameter.numel() for parameter in trainable_parameters(audited.task.model()).values()]
    most = max(_MOST_COORDINATES // len(sizes), 1)
    return like(audited, [min(size, most) for size in sizes])


def like(audited: Audited, sizes: Sequence[int]) -> Known:
    """A known task with such layers, under the audited task's name, whose clients share the randomness of its own."""
    task = Known(sizes, audited.grant.relation, audited.task.dataset)
    task.name = audited.task.name
    return task


def shard_of(records: Tensor, targets: Tensor | None = None) -> Shard:
    """Records with these gradients, shape [records, d]; none of them is null, even if it is not a number."""
    return Shard(records, torch.zeros(len(records)) if targets is None else targets, null=False)


def zeros_for(task: Known) -> Parameters:
    """The parameters that a known task is asked with: none matters."""
    return {f"sides.{i}.weight": torch.zeros(1, size).numpy() for i, size in enumerate(task.sizes)}


def dense(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """A record of signs that weighs the same in every layer, of norm 1, shape [d]."""
    parts = [
        (torch.randint(2, (size,), generator=generator).float() * 2.0 - 1.0) / math.sqrt(size * len(sizes))
        for size in sizes
    ]
    return torch.cat(parts)
