"""Augmentation multiplicity (De et al. 2022): a record's gradient is the mean of those of several random views of it.

The mean is clipped, not the views, so that a record counts for C as before. A view depends on the record and on random
numbers of its own, which depend on (key, round, step, index of the record) and on nothing else.

Formal guarantee: given the views' random numbers, which are independent of all records, a record's vector is a function
of the record alone, of norm at most C, and the promise of `SampledGaussianSum` is kept. A mixture over the random
numbers, with the same weights for neighbouring shards, costs no more than the costliest of them (the hockey-stick
divergence is jointly convex). So a step's event is what it is without views.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy._support.spans import spanned
from fedprivacy.gradients.apart import RowByRow
from fedprivacy.gradients.parts import WHOLE
from fedprivacy.gradients.selfcheck import made_up_records
from fedprivacy.gradients.threads import computing_with
from fedprivacy.mechanisms.keystream import WORDS_A_BLOCK, Keystream, Position, Purpose
from fedprivacy.tasks.augmentation import Augmentation
from fedprivacy.tasks.task import Shard

_EVENLY = 2.0**-24
"""Between neighbouring random numbers: float32 has all of them."""

_MOST_ROWS, _MOST_NUMBERS = 512, 2**20
"""That a part has, if that is more than the least: larger ones are no faster."""

_MOST_HELD = 2**24
"""Numbers of views that are held at once, of one record at least: of a large sample, some records after the others."""


Batch = tuple[Tensor, Tensor]
"""Inputs and targets of some records."""


class AugmentationError(ValueError):
    """Something is not a view of every record."""


class Views:
    """Makes the views of a sample of records.

    Attributes:
        multiplicity: views of each.
    """

    def __init__(self, augmentation: Augmentation, multiplicity: int, inputs: Tensor) -> None:
        """Judge the augmentation on made-up records.

        Args:
            augmentation: makes one view of each record.
            multiplicity: at least 1.
            inputs: records of the kind that will come, [any, ...]; no value is read.

        Raises:
            AugmentationError: it fails; or what it makes has another shape or type, or shows other records.
        """
        self.multiplicity, self._augmentation = multiplicity, augmentation
        with torch.no_grad(), computing_with(1):
            probe = self._tried(inputs, torch.empty(0, augmentation.draws, device=inputs.device))
            largest = _MOST_ROWS
            while largest > WHOLE and largest * probe[0][0].numel() > _MOST_NUMBERS:
                largest //= 2
            failed, shown = torch.zeros_like(probe[0][:1]), lambda *batch: [self._view(*batch)]
            self._row_by_row = RowByRow.admitted(self._view, failed, shown, nn.Identity(), probe, largest=largest)

    def _tried(self, records: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Made-up records of these kinds, and random numbers, of which views can be made: of each by itself."""
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

    @property
    def together(self) -> int:
        """Of how many records views are made at once: a power of two, which public shapes alone decide."""
        held = self.multiplicity * max(self._row_by_row.failed.numel(), 1)
        return 1 << (max(_MOST_HELD // held, 1).bit_length() - 1)

    @spanned("views")
    def of(self, shard: Shard, sample: NDArray[np.intp], keystream: Keystream, position: Position) -> Batch:
        """The sampled records as their views, inputs of shape [records, multiplicity, ...]; [records, ...] for one.

        Where a view cannot be made, the record itself is in its place.
        """
        rows = torch.from_numpy(sample).to(shard.inputs.device)
        inputs = shard.inputs[rows].repeat_interleave(self.multiplicity, 0)
        chances = self._chances(sample, keystream, position).to(inputs.device)
        with torch.no_grad(), computing_with(1):
            views, made = self._row_by_row(inputs, chances.flatten(0, 1))
        failed = ~made.to(inputs.device)
        views[failed] = inputs[failed]
        if self.multiplicity > 1:
            views = views.unflatten(0, (len(sample), self.multiplicity))
        return views, shard.targets[rows]

    def _chances(self, sample: NDArray[np.intp], keystream: Keystream, position: Position) -> Tensor:
        """Of each sampled record the random numbers in [0, 1), shape [records, multiplicity, draws]."""
        needed = self.multiplicity * self._augmentation.draws
        blocks = -(-needed // WORDS_A_BLOCK)
        numbers = (sample[:, np.newaxis] * blocks + np.arange(blocks)).astype(np.uint64)
        words = keystream.reader(Purpose.VIEWS, position).blocks(numbers).reshape(len(sample), blocks * WORDS_A_BLOCK)
        evenly = (words[:, :needed] >> np.uint64(40)).astype(np.float32) * np.float32(_EVENLY)
        return torch.from_numpy(evenly).view(len(sample), self.multiplicity, self._augmentation.draws)

    def _view(self, inputs: Tensor, chances: Tensor) -> Tensor:
        """One view of each record; judged with numbers beyond [0, 1), too, of which the fraction counts."""
        view = self._augmentation.view(inputs.clone(), chances.nan_to_num(0.0, 0.0, 0.0).abs().frac())
        if not isinstance(view, Tensor) or (view.shape, view.dtype) != (inputs.shape, inputs.dtype):
            what = f"{list(view.shape)}, {view.dtype}" if isinstance(view, Tensor) else f"a {type(view).__name__}"
            raise AugmentationError(f"a view of inputs {list(inputs.shape)}, {inputs.dtype}, is {what}")
        return view


def heard(
    shard: Shard, sample: NDArray[np.intp], views: Views | None, keystream: Keystream, position: Position
) -> Iterator[Batch]:
    """What the gradients of a sample are taken of: the records as they are, or as their views, some after the others.

    Of nobody there is one part, too.
    """
    if views is None:
        rows = torch.from_numpy(sample).to(shard.inputs.device)
        yield shard.inputs[rows], shard.targets[rows]
        return
    for start in range(0, max(len(sample), 1), views.together):
        yield views.of(shard, sample[start : start + views.together], keystream, position)
