"""Batches of a step: the sampled records, of persons all rows or some that are drawn for this step, or views of these.

Augmentation multiplicity (De et al. 2022): a record's gradient is the mean of those of several random views of it. The
mean is clipped, not the views, so that a record counts for C as before. A view depends on the record (of a person, on
one of its rows) and on random numbers of its own, which depend on (key, round, step, index of the record) and on
nothing else.

A person may have hundreds of rows. With `rows_per_step`, k of them are drawn for each step, uniformly and without
replacement, by random numbers that depend on (key, round, step, index of the person) and on nothing else. Every step
draws anew.

Formal guarantee: given the random numbers of views and the draws of rows, which are independent of all records, a
record's vector (a person's) is a function of the record alone (of the person's rows alone), of norm at most C, and the
promise of `SampledGaussianSum` is kept. A mixture over the random numbers, with the same weights for neighbouring
shards, costs no more than the costliest of them (the hockey-stick divergence is jointly convex). So a step's event is
what it is without views and with all rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.gradients.layout import WHOLE, Batch, Layout
from fedprivacy.gradients.per_record import RowByRow
from fedprivacy.gradients.selfcheck import made_up_records
from fedprivacy.gradients.surroundings import computing_with, undisturbed
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.tasks.augmentation import Augmentation
from fedprivacy.tasks.task import Shard, Task
from fedprivacy.values.unit import missing

_EVENLY = 2.0**-24
"""Distance between neighbouring random numbers: float32 holds all of them."""

_MOST_ROWS, _MOST_NUMBERS = 512, 2**20
"""Upper limits on rows and elements per chunk, if above the smallest size; larger chunks are no faster."""

_MOST_HELD = 2**24
"""Maximum number of elements of views held at once (at least one record's): a large sample is taken in portions."""

_LAST = 2**63 - 1
"""Place in the draw of a row that is missing: after all that are there."""


class AugmentationError(ValueError):
    """An augmentation does not return a valid view of every record."""


class Views:
    """Random views of a sample of records.

    Attributes:
        multiplicity: number of views of each record.
    """

    def __init__(self, augmentation: Augmentation, multiplicity: int, inputs: Tensor) -> None:
        """Check the augmentation on made-up records.

        Args:
            augmentation: function that makes one view of each record.
            multiplicity: number of views, at least 1.
            inputs: inputs of the shape and type of the records, [any, ...]; no value is read.

        Raises:
            AugmentationError: it fails; or its views have another shape or type, or depend on other records.
        """
        self.multiplicity, self._augmentation = multiplicity, augmentation
        with undisturbed, torch.no_grad(), computing_with(1):
            probe = self._probe(inputs, torch.empty(0, augmentation.draws, device=inputs.device))
            largest = _MOST_ROWS
            while largest > WHOLE and largest * probe[0][0].numel() > _MOST_NUMBERS:
                largest //= 2
            failed, visible = torch.zeros_like(probe[0][:1]), lambda *batch: [self._view(*batch)]
            self._row_by_row = RowByRow.choose(self._view, failed, visible, nn.Identity(), probe, largest=largest)

    def _probe(self, records: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Find made-up records and random numbers whose views can be made, of each record by itself."""
        try:
            inputs, chances = made_up_records(records, draws, self._view)
            together = self._view(inputs, chances)
            alone = torch.cat(list(map(self._view, inputs.split(1), chances.split(1))))
        except AugmentationError:
            raise
        except Exception as error:
            raise AugmentationError(f"no view can be made of made-up records: {error}") from error
        if not torch.allclose(together.double(), alone.double(), rtol=1e-4, atol=1e-4, equal_nan=True):
            raise AugmentationError(
                "a view of a record is another one without the others; make it of the record's own row and its own "
                "chances, and draw no other random numbers"
            )
        return inputs, chances

    def together(self, rows: int) -> int:
        """Return how many records of so many rows get views at once: a power of two, by public shapes alone."""
        held = rows * self.multiplicity * max(self._row_by_row.failed.numel(), 1)
        return 1 << (max(_MOST_HELD // held, 1).bit_length() - 1)

    def of(
        self, records: Tensor, rows: int, sample: NDArray[np.intp], keystream: Keystream, position: Position
    ) -> Tensor:
        """Make the views of sampled records, shape [records, multiplicity, ...]; [records, ...] for one view.

        A view that cannot be made is replaced by the row itself.

        Args:
            records: inputs of the records, shape [records, ...]; of persons [records, rows, ...], where each row has
                views of its own: [records, rows, multiplicity, ...].
            rows: number of rows of a record.
            sample: the records' places in the shard, shape [records].
            keystream: randomness of the shard's owner.
            position: round and step.
        """
        own = records if rows == 1 else records.flatten(0, 1)
        inputs = own.repeat_interleave(self.multiplicity, 0)
        chances = self._chances(sample, rows, keystream, position).to(inputs.device)
        with undisturbed, torch.no_grad(), computing_with(1):
            views, made = self._row_by_row(inputs, chances)
        failed = ~made.to(inputs.device)
        views[failed] = inputs[failed]
        axes = [axis for axis in (rows, self.multiplicity) if axis > 1]
        return views.unflatten(0, (len(sample), *axes)) if axes else views

    def _chances(self, sample: NDArray[np.intp], rows: int, keystream: Keystream, position: Position) -> Tensor:
        """Draw the random numbers of each sampled record, in [0, 1), shape [records * rows * multiplicity, draws]."""
        needed = rows * self.multiplicity * self._augmentation.draws
        words = keystream.reader(Purpose.VIEWS, position).by_place(sample, needed)
        evenly = (words >> np.uint64(40)).astype(np.float32) * np.float32(_EVENLY)
        return torch.from_numpy(evenly).view(len(sample) * rows * self.multiplicity, self._augmentation.draws)

    def _view(self, inputs: Tensor, chances: Tensor) -> Tensor:
        """Make one view of each record; the check passes numbers beyond [0, 1), too, whose fractional part is used."""
        view = self._augmentation.view(inputs.clone(), chances.nan_to_num(0.0, 0.0, 0.0).abs().frac())
        if not isinstance(view, Tensor) or (view.shape, view.dtype) != (inputs.shape, inputs.dtype):
            what = f"{list(view.shape)}, {view.dtype}" if isinstance(view, Tensor) else f"a {type(view).__name__}"
            raise AugmentationError(f"a view of inputs {list(inputs.shape)}, {inputs.dtype}, is {what}")
        return view


def layout_of(task: Task, multiplicity: int = 0) -> Layout:
    """Return the rows of a task's record, and how their gradients become one.

    Args:
        task: states its unit of privacy, `rows_per_step` and `person_gradient`.
        multiplicity: augmentation multiplicity; 0: the rows as they are.
    """
    return Layout(task.unit.rows, max(multiplicity, 1), task.rows_per_step, task.person_gradient == "sum")


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
    together = views.together(layout.rows_computed)
    for start in range(0, max(len(sample), 1), together):
        some = sample[start : start + together]
        inputs, targets = _rows(shard, some, layout, keystream, position)
        yield views.of(inputs, layout.rows_computed, some, keystream, position), targets


def _rows(shard: Shard, sample: NDArray[np.intp], layout: Layout, keystream: Keystream, position: Position) -> Batch:
    records = torch.from_numpy(sample).to(shard.inputs.device)
    if layout.rows_computed == shard.rows:
        return shard.inputs.index_select(0, records), shard.targets.index_select(0, records)
    there = ~missing(shard.targets[records])
    places = _draw_rows(there, sample, layout.rows_computed, keystream, position)
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


def _draw_rows(there: Tensor, sample: NDArray[np.intp], count: int, keystream: Keystream, position: Position) -> Tensor:
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
