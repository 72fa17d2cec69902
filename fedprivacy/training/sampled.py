"""Batches of a step: the sampled records, of persons all rows or some that are drawn for this step, or views of these.

A person may have hundreds of rows. With `rows_per_step`, k of them are drawn for each step, uniformly and without
replacement, by random numbers that depend on (key, round, step, index of the person) and on nothing else.

Formal guarantee: given the draws, which are independent of all records, a person's vector is a function of the person's
rows alone, of norm at most C, and the promise of `SampledGaussianSum` is kept. As with views
(`fedprivacy.training.augment`), a mixture over the draws costs no more than the costliest of them: a step's event is
what it is with all rows. Every step draws anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.gradients.layout import Batch, Layout
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.tasks.task import Shard, Task
from fedprivacy.training.augment import Views
from fedprivacy.values.unit import missing, unit_of

_LAST = 2**63 - 1
"""Place in the draw of a row that is missing: after all that are there."""


def layout_of(task: Task, multiplicity: int = 0) -> Layout:
    """Return the rows of a task's record, and how their gradients become one.

    Args:
        task: states its unit of privacy, `rows_per_step` and `person_gradient`.
        multiplicity: augmentation multiplicity; 0: the rows as they are.
    """
    summed = getattr(task, "person_gradient", Task.person_gradient) == "sum"
    return Layout(unit_of(task).rows, max(multiplicity, 1), getattr(task, "rows_per_step", None), summed)


def sampled_batches(  # noqa: PLR0917 - what one step needs
    shard: Shard,
    sample: NDArray[np.intp],
    layout: Layout,
    views: Views | None,
    keystream: Keystream,
    position: Position,
) -> Iterator[Batch]:
    """Yield the batches whose gradients are taken, in portions if there are views.

    An empty sample yields one empty batch.
    """
    if views is None:
        yield _rows(shard, sample, layout, keystream, position)
        return
    together = views.together(layout.computed)
    for start in range(0, max(len(sample), 1), together):
        some = sample[start : start + together]
        inputs, targets = _rows(shard, some, layout, keystream, position)
        yield views.of(inputs, layout.computed, some, keystream, position), targets


def _rows(shard: Shard, sample: NDArray[np.intp], layout: Layout, keystream: Keystream, position: Position) -> Batch:
    records = torch.from_numpy(sample).to(shard.inputs.device)
    if layout.computed == shard.rows:
        return shard.inputs.index_select(0, records), shard.targets.index_select(0, records)
    there = ~missing(shard.targets[records])
    places = _drawn(there, sample, layout.computed, keystream, position)
    return chosen_rows(shard, records, places)


def chosen_rows(shard: Shard, records: Tensor, places: Tensor) -> Batch:
    """Return some rows of persons, inputs and targets [persons, k, ...]; [persons, ...] for one row.

    Args:
        shard: of persons.
        records: places of the persons in the shard, shape [persons].
        places: places of each person's rows, shape [persons, k].
    """
    at = (records, places[:, 0]) if places.shape[1] == 1 else (records.unsqueeze(1), places)
    return shard.inputs[at], shard.targets[at]


def _drawn(there: Tensor, sample: NDArray[np.intp], count: int, keystream: Keystream, position: Position) -> Tensor:
    """Draw `count` of each person's rows, in their own order; missing ones last, if there are fewer.

    No branch depends on how many rows anybody has.

    Args:
        there: mask of the rows that are not missing, bool, shape [persons, m].
        sample: places of the persons in the shard, shape [persons].
        count: number of rows.
        keystream: randomness of the shard's owner.
        position: round and step.

    Returns:
        Places of the rows, shape [persons, count].
    """
    words = keystream.reader(Purpose.ROWS, position).by_place(sample, there.shape[1])
    chances = torch.from_numpy((words >> np.uint64(1)).astype(np.int64)).to(there.device)
    order = chances.masked_fill(~there, _LAST).argsort(1)
    return order[:, :count].sort(1).values
