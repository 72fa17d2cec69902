"""Layout of a batch: the rows that a record has, and the parts in which the rows are computed.

A record may have several rows: views of one, the rows of a person, or views of these. What each weighs is public, and
no record's rows decide what another's weigh.

Kernels choose their order of summation by the number of rows. So a part of a batch has one of a few sizes, for all of
which a record's gradient is known to have the same bits (`fedprivacy.gradients.invariance`); the last part is filled
up. So a record's result does not depend on the number of records.

A GPU is told a part's kernels once, as a CUDA graph, and repeats them at one command: a step of a small model takes it
as long as the host needs to launch them. They are the kernels that computed such parts before, in the same order and on
the same shapes, so what was proven of them holds for the recording. The engine compares both all the same, on made-up
records, before it uses a recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedprivacy.gradients.selfcheck import PROBES
from fedprivacy.values.unit import missing, missing_target

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows that a record has, and how their gradients become one.

    All of it is public, and no record's rows decide what another's weigh.

    Attributes:
        rows: m, the most rows of a person, who is a record; 1: a row is a record.
        views: augmentation multiplicity; 1: the rows as they are.
        per_step: number of a person's rows that are computed in a step; None: all.
        summed: whether a person's gradient is the sum of the computed rows' gradients over the most there can be,
            so that rows count alike; else it is their mean, so that persons do.
    """

    rows: int = 1
    views: int = 1
    per_step: int | None = None
    summed: bool = False

    @property
    def rows_computed(self) -> int:
        """Number of a person's rows that a batch holds, missing ones included: the axis is there if it is above 1."""
        return self.rows if self.per_step is None else min(self.per_step, self.rows)

    @property
    def each(self) -> int:
        """Number of computed rows of a record, missing ones included."""
        return self.rows_computed * self.views

    def kinds(self, inputs: Tensor, targets: Tensor) -> Batch:
        """Return inputs and targets of as many rows as there are: their shapes and types are those of a row."""
        inputs = inputs.flatten(0, (self.rows_computed > 1) + (self.views > 1))
        return inputs, targets if self.rows_computed == 1 else targets.flatten(0, 1)

    def make_records(self, probe: Batch) -> Batch:
        """Make records of made-up rows, with all rows, with one, and with every other one."""
        inputs, targets = probe
        if self.rows_computed > 1:
            places = torch.arange(self.rows_computed, device=inputs.device)
            turned = (torch.arange(PROBES, device=inputs.device).unsqueeze(1) + places) % PROBES
            inputs, targets = inputs[turned], targets[turned.to(targets.device)]
            absent = torch.stack([places < 0, places > 0, places % 2 > 0]).to(targets.device)
            targets[absent] = missing_target(targets)
        if self.views > 1:
            axis = 2 if self.rows_computed > 1 else 1
            inputs = inputs.unsqueeze(axis).expand(*inputs.shape[:axis], self.views, *inputs.shape[axis:]).contiguous()
        return inputs, targets

    def lay_out(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lay out the rows of records, whatever their numbers, in one shape; no branch depends on them.

        A row that is not there has the target of the person's first row, and weighs nothing.

        Args:
            inputs: shape [records, ...], with an axis of the computed rows and one of the views, if above 1.
            targets: shape [records, ...], with the axis of the computed rows. A person's rows come first; targets are
                missing (`values.unit.missing`) where there are fewer.

        Returns:
            Inputs, targets and weights, float32, [records * rows, ...]; the weights of a record add up to at most 1.
        """
        weights = inputs.new_ones(len(inputs), dtype=torch.float32)
        if self.rows_computed > 1:
            there = ~missing(targets)
            weights = there.to(torch.float32)
            weights /= self.rows_computed if self.summed else weights.sum(1, keepdim=True)
            known = there.view(*there.shape, *[1] * (targets.dim() - 2))
            targets = torch.where(known, targets, targets[:, :1]).flatten(0, 1)
            inputs, weights = inputs.flatten(0, 1), weights.flatten().to(inputs.device)
        if self.views > 1:
            inputs, targets = inputs.flatten(0, 1), targets.repeat_interleave(self.views, 0)
            weights = (weights / self.views).repeat_interleave(self.views, 0)
        return inputs, targets, weights


ONE_ROW = Layout()
"""A row is a record."""


WHOLE = 32
"""Number of elements that an elementwise kernel takes at a time, two of a processor's longest vectors. Elements left
over at the end of a tensor go through other code; a multiple of this many rows leaves none over, however wide rows are.
"""

_ROOM, TURN = 1.25, 48
"""Limits on the size of a part, as a factor of the remaining rows and an addend: smaller parts would take more turns,
each of which costs as much as some rows, of a small model as these.
"""

_SMALL = (24, 16, 12, 8)
"""Small sizes, which may leave elements over at some widths: each is a multiple of eight or four, as convolutions
prefer.
"""

_ALIGNMENT = 64
"""Alignment, in bytes, of rows in memory of their own: kernels may treat elements before it differently."""

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class _BatchPart(NamedTuple):
    """The records from `start` to before `stop`, computed in `size` rows."""

    start: int
    stop: int
    size: int


def round_up(number: float, unit: int) -> int:
    """Return the smallest multiple of a unit, at least one, that is not below a number."""
    return max(math.ceil(number / unit), 1) * unit


def sizes_up_to(largest: int, least: int = WHOLE) -> tuple[int, ...]:
    """Return the sizes that parts may have, the largest first: a multiple of `least` and its halves, rounded up to one.

    A size below `least` has no halves.
    """
    sizes = [largest]
    while sizes[-1] > least:
        sizes.append(round_up(sizes[-1] / 2, least))
    return tuple(sizes)


def with_small(sizes: Sequence[int]) -> tuple[int, ...]:
    """Add smaller sizes: where a row takes long, few records deserve a size of their own."""
    return *sizes, *(size for size in _SMALL if size < sizes[-1])


def cut(records: int, sizes: Sequence[int], turn: int = TURN) -> Iterator[_BatchPart]:
    """Cut a batch into parts: the largest size as often as possible, then sizes that waste little or save a turn.

    A turn costs as much as `turn` rows.
    """
    start = 0
    while start < records:
        size = _size(records - start, sizes, turn)
        yield _BatchPart(start, min(start + size, records), size)
        start += size


def _size(left: int, sizes: Sequence[int], turn: int) -> int:
    """Return the smallest size that holds all remaining rows and wastes little, or else the largest that is filled."""
    holding = (size for size in reversed(sizes) if left <= size <= _ROOM * left + turn)
    full = (size for size in sizes if size < left)
    return next(chain(holding, full), sizes[-1])


def filled(rows: Tensor, size: int) -> Tensor:
    """Fill rows [batch, ...] up to `size` with copies of the first, as `plain` rows."""
    missing = size - rows.shape[0]
    return plain(torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) if missing else rows)


def plain(rows: Tensor) -> Tensor:
    """Return the same rows in the layout of a new tensor: kernels depend on strides and addresses, too.

    Even an axis of length one has a stride, and a convolution chooses the order of channels by it. Strides of longer
    axes follow from the shape.
    """
    if not rows.is_contiguous() or rows.data_ptr() % _ALIGNMENT:
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows if min(rows.shape) > 1 else rows.view(-1).view(rows.shape)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether all pairs of numbers have the same bits, or are both NaN."""
    if not first.is_floating_point():
        return torch.equal(first, second)
    mine, theirs = (numbers.contiguous().view(_BITS[numbers.element_size()]) for numbers in (first, second))
    return torch.equal(mine, theirs) or bool(((mine == theirs) | (first.isnan() & second.isnan())).all())


_Results = tuple[Tensor, ...]

_Compute = Callable[[Tensor, Tensor, Tensor, Tensor], _Results]
"""(inputs, targets, mask of the rows that are records, clipping norm) -> results, by operations that depend on no value
and that no host waits for.
"""


class RecordedPart:
    """A computation of parts of one size."""

    def __init__(self, compute: _Compute, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        """Record a computation on inputs and targets [size, ...], whose values do not matter.

        Raises:
            Exception: any error of the computation, or of torch about an operation that cannot be recorded.
        """
        self._compute, self._trained = compute, [p for p in model.parameters() if p.requires_grad]
        self._own = [p.detach().clone() for p in self._trained]  # a recording reads and writes the same memory always
        others = [t for t in (*model.parameters(), *model.buffers()) if not t.requires_grad]
        self._memory = [*zip(self._trained, self._own, strict=True), *((t, t.detach()) for t in others)]
        self._inputs, self._targets = inputs.clone(), targets.clone()
        self._places = torch.arange(len(inputs), device=inputs.device)
        self._counted = self._places >= 0
        self._clipping_norm = torch.ones((), dtype=torch.float64, device=inputs.device)
        self._results, self._repeat = (as_graph if inputs.is_cuda else by_heart)(self._on_own_memory)

    def __call__(self, inputs: Tensor, targets: Tensor, clipping_norm: float) -> _Results:
        """Compute at most as many records as were recorded, at the model's present parameters.

        Returns:
            The results, which hold until the next call.
        """
        for own, rows in ((self._inputs, inputs), (self._targets, targets)):
            own[: len(rows)].copy_(rows)
            if len(rows) < len(own):
                own[len(rows) :].copy_(rows[:1].expand_as(own[len(rows) :]))
        torch.lt(self._places, len(inputs), out=self._counted)
        self._clipping_norm.fill_(clipping_norm)
        torch._foreach_copy_(self._own, [p.detach() for p in self._trained])
        self._repeat()
        return self._results

    def _on_own_memory(self) -> _Results:
        before = [tensor.data for tensor, _ in self._memory]
        try:
            for tensor, own in self._memory:
                tensor.data = own
            return self._compute(self._inputs, self._targets, self._counted, self._clipping_norm)
        finally:
            for (tensor, _), own in zip(self._memory, before, strict=True):
                tensor.data = own


def as_graph(compute: Callable[[], _Results]) -> tuple[_Results, Callable[[], None]]:
    """Record a computation as a CUDA graph; return its results, and what computes them again."""
    present, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(present)
    with torch.cuda.stream(aside):
        compute()  # what is made once, such as a library's workspace, must not be made within the recording
    present.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):  # other threads compute meanwhile
        results = compute()
    return results, graph.replay


def by_heart(compute: Callable[[], _Results]) -> tuple[_Results, Callable[[], None]]:
    """Do on a CPU what a recording does: write the results of the same memory into the same memory."""
    results = compute()

    def repeat() -> None:
        for result, again in zip(results, compute(), strict=True):
            result.copy_(again)

    return results, repeat
