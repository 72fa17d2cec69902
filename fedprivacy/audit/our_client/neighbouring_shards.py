"""Shards of a task's own records that differ in one: removed or nulled, and put in its place something extreme.

A record that is not a number is put there as a record: the engine must make nothing of it. Null rows are stated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedprivacy.audit.our_client.audited_client import Audited, without_records
from fedprivacy.audit.subject import Effort
from fedprivacy.tasks import Shard

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
    for about, inputs in _extreme_inputs(last.inputs[-1]):
        changed = last.inputs.clone()
        changed[-1] = inputs
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


def _extreme_inputs(record: Tensor) -> list[tuple[str, Tensor]]:
    """Inputs in place of a record's own; of whole numbers, which a model may not accept, none."""
    if not record.is_floating_point():
        return []
    return [(about, torch.full_like(record, value)) for about, value in _EXTREMES.items()]
