"""Tasks, shards and models that the auditor asks our client about.

**Known tasks**: the gradient of a record is the record itself, whatever the parameters. A release is then the sum of
the records that joined, clipped, plus noise. A record that points in a direction of its own shows whether it joined, a
record of zeros contributes nothing, and several steps can be compared though each moves the parameters.

**Neighbouring shards** of a task's own records that differ in one: removed or nulled, and put in its place something
extreme. A record that is not a number is put there as a record: the engine must make nothing of it. Null rows are
stated.

**Hostile parameters**: global models that an honest server would not send.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from fedprivacy.audit.canaries import Layers
from fedprivacy.audit.our_client.audited_client import Audited, Parameters, without_records
from fedprivacy.audit.subject import Effort
from fedprivacy.gradients import trainable_parameters
from fedprivacy.tasks import Augmentation, Shard, ShardSource, Task
from fedprivacy.values.events import NeighbouringRelation

_MOST_COORDINATES = 4000
"""Maximum number of coordinates of a known task's model; a larger model is scaled down, layer by layer."""

SAME_VIEWS = Augmentation(lambda records, chances: records, draws=1)
"""Every view is the record, so that its gradient is known in runs that take views, too."""

_MOST_RECORDS = 64
"""Maximum number of a shard's records in a quick audit."""

_EXTREMES = {
    "a record that is not a number": torch.nan,
    "an infinite record": torch.inf,
    "a record of huge numbers": 1e6,
    "a record of huge negative numbers": -1e6,
    "a record of zeros": 0.0,
}

_FAR = 1e4
"""Distance at which float32 loses a norm computed as a difference of large numbers: it comes out too large, or zero."""

_LARGE = 30.0
"""Factor by which the large parameters exceed the usual ones."""

_AMPLIFICATION = 1e8
"""Factor by which hostile parameters magnify the rounding of what they subtract from one another."""


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

    @classmethod
    def like(cls, audited: Audited, sizes: Sequence[int]) -> Self:
        """Such layers under the audited task's name: clients share the randomness of its own."""
        task = cls(sizes, audited.grant.relation, audited.task.dataset)
        task.name = audited.task.name
        return task

    def model(self) -> nn.Module:
        """One linear layer for each part of a record."""
        return Layers(nn.Linear(size, 1, bias=False) for size in self.sizes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The output itself."""
        return outputs.sum(1)

    def shard(self, source: ShardSource) -> Shard:
        """None of its own."""
        return shard_of(torch.zeros(0, sum(self.sizes)))


def known_of(audited: Audited) -> Known:
    """A known task with layers of the sizes of the audited task's, or smaller ones in their place."""
    sizes = [parameter.numel() for parameter in trainable_parameters(audited.task.model()).values()]
    most = max(_MOST_COORDINATES // len(sizes), 1)
    return Known.like(audited, [min(size, most) for size in sizes])


def shard_of(records: Tensor, targets: Tensor | None = None) -> Shard:
    """Records with these gradients, shape [records, d]; none of them is null, even if it is not a number."""
    return Shard(records, torch.zeros(len(records)) if targets is None else targets, null=False)


def zeros_for(task: Known) -> Parameters:
    """The parameters that a known task is asked with: none matters."""
    return {f"layers.{i}.weight": torch.zeros(1, size).numpy() for i, size in enumerate(task.sizes)}


def dense(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """A record of signs that weighs the same in every layer, of norm 1, shape [d]."""
    parts = [
        (torch.randint(2, (size,), generator=generator).float() * 2.0 - 1.0) / math.sqrt(size * len(sizes))
        for size in sizes
    ]
    return torch.cat(parts)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring shards, whose last record is the one that differs.

    Attributes:
        about: what the record is, in words.
        with_it: the shard that holds it.
        without: the one in which it is missing, or null where shard sizes are public.
        place: where it stands, from 0.
    """

    about: str
    with_it: Shard
    without: Shard
    place: int

    @property
    def alone(self) -> Shard:
        """The record, and no other."""
        return _rows(self.with_it, torch.tensor([self.place]))


def pairs_of(audited: Audited, records: int) -> list[Pair]:
    """Neighbours of the audited shard: so many of its own records, and extreme ones in the place of one."""
    shard, generator = _some(audited), audited.generator(3)
    if len(shard) == 0:
        shapes = ((rows, rows.shape[1:]) for rows in (shard.inputs, shard.targets))
        shard = shard.of_records(*(rows.new_zeros(1, *shape) for rows, shape in shapes))
    order = torch.randperm(len(shard), generator=generator)
    pairs = [_pair("a record of the shard", _last(shard, int(row)), audited) for row in order[:records]]
    last = _last(shard, int(order[0]))
    for about, value in _EXTREMES.items() if last.inputs.is_floating_point() else ():  # a model may refuse others
        changed = last.inputs.clone()
        changed[-1] = value
        pairs.append(_pair(about, last.of_records(changed, last.targets), audited))
    targets = last.targets.clone()
    targets[-1] = -7 if not targets.is_floating_point() else torch.nan  # of no class
    pairs.append(_pair("a record with a label that does not exist", last.of_records(last.inputs, targets), audited))
    return pairs


def pairs_alone(audited: Audited, records: int) -> list[Pair]:
    """A shard with one of its own records beside one without any, and so many records that were moved far from zero."""
    shard, empty = _some(audited), without_records(audited.shard)
    order = torch.randperm(len(shard), generator=audited.generator(8))
    pairs = [Pair("the only record of the shard", pairs_of(audited, records=1)[0].alone, empty, 0)]
    if shard.inputs.is_floating_point():
        about = "the only record of the shard, far from zero"
        moved = shard.of_records(shard.inputs[order[:records]] + _FAR, shard.targets[order[:records]])
        pairs += [Pair(about, _rows(moved, torch.tensor([row])), empty, 0) for row in range(len(moved))]
    return pairs


def _some(audited: Audited) -> Shard:
    shard, device = audited.shard, torch.device("cpu")
    most = _MOST_RECORDS if audited.effort is Effort.QUICK else 8 * _MOST_RECORDS
    return shard.of_records(shard.inputs[:most].to(device), shard.targets[:most].to(device))


def _last(shard: Shard, row: int) -> Shard:
    """The shard with one record at its end."""
    rows = torch.cat([torch.arange(row), torch.arange(row + 1, len(shard)), torch.tensor([row])])
    return _rows(shard, rows)


def _rows(shard: Shard, rows: Tensor) -> Shard:
    return shard.of_records(shard.inputs[rows], shard.targets[rows])


def _pair(about: str, shard: Shard, audited: Audited) -> Pair:
    place = len(shard) - 1
    return Pair(about, shard, without_last(shard, size_public=audited.task.shard_sizes_public), place)


def without_last(shard: Shard, *, size_public: bool) -> Shard:
    """A shard without its last record: with a null row in its place where the number of rows is public."""
    if not size_public:
        return shard.of_records(shard.inputs[:-1], shard.targets[:-1])
    return shard.of_records(shard.inputs, shard.targets, null=torch.arange(len(shard.inputs)) == len(shard.inputs) - 1)


def hostile_parameters(audited: Audited) -> Iterator[tuple[str, Parameters]]:
    """Yield words and parameters: a new model's, large random ones, and some under which rounding decides."""
    yield "under a new model", audited.parameters
    yield "under large parameters", _large(audited)
    yield "under parameters that a hostile server chose", amplifying(audited)


def _large(audited: Audited) -> Parameters:
    generator = audited.generator(4)
    named = trainable_parameters(audited.task.model())
    return {
        name: (_LARGE * torch.randn(p.shape, generator=generator) / _fan_in(p) ** 0.5).to(p.dtype).numpy()
        for name, p in named.items()
    }


def amplifying(audited: Audited) -> Parameters:
    """Layers whose units all compute nearly the same, and a last one that takes huge multiples of their differences.

    What is left of a record's output is the rounding of its hidden numbers (`_AMPLIFICATION` times). Were it to depend
    on who else is in the batch, so would the gradient.
    """
    generator = audited.generator(5)
    named = trainable_parameters(audited.task.model())
    matrices = [name for name, p in named.items() if p.dim() > 1]
    values = {}
    for name, p in named.items():
        random = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if p.dim() < 2:
            filled = torch.zeros_like(random) if matrices and name > matrices[-1] else torch.ones_like(random)
        elif name == matrices[-1]:
            centred = random - random.mean(dim=tuple(range(1, p.dim())), keepdim=True)
            filled = _AMPLIFICATION * centred / _fan_in(p)
        else:
            filled = 1e-4 * random / _fan_in(p) ** 0.5
        values[name] = filled.to(p.dtype).numpy()
    return values


def _fan_in(parameter: torch.Tensor) -> int:
    return max(parameter[0].numel() if parameter.dim() > 1 else 1, 1)
