"""Parts of a batch in few fixed sizes, so that a record's result does not depend on the number of records.

Kernels choose their order of summation by the number of rows. So a part has one of a few sizes, for all of which a
record's gradient is known to have the same bits (`fedprivacy.gradients.invariance`); the last part is filled up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

WHOLE = 32
"""Number of elements that an elementwise kernel takes at a time, two of a processor's longest vectors. Elements left
over at the end of a tensor go through other code; a multiple of this many rows leaves none over, however wide rows are.
"""

_ROOM, _TURN = 1.25, 48
"""Limits on the size of a part, as a factor of the remaining rows and an addend: smaller parts would take more turns,
each of which costs as much as some rows.
"""

_SMALL = (24, 16, 12, 8)
"""Small sizes, which may leave elements over at some widths: each is a multiple of eight or four, as convolutions
prefer.
"""

_ALIGNMENT = 64
"""Alignment, in bytes, of rows in memory of their own: kernels may treat elements before it differently."""

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class BatchPart(NamedTuple):
    """The records from `start` to before `stop`, computed in `size` rows."""

    start: int
    stop: int
    size: int


def sizes_up_to(largest: int, least: int = WHOLE) -> tuple[int, ...]:
    """Return the sizes that parts may have, the largest first: a power of two and its halves down to `least`."""
    sizes = [largest]
    while sizes[-1] > least:
        sizes.append(sizes[-1] // 2)
    return tuple(sizes)


def with_small(sizes: Sequence[int]) -> tuple[int, ...]:
    """Add smaller sizes: where a row takes long, few records deserve a size of their own."""
    return *sizes, *(size for size in _SMALL if size < sizes[-1])


def cut(records: int, sizes: Sequence[int]) -> Iterator[BatchPart]:
    """Cut a batch into parts: the largest size as often as possible, then sizes that waste little or save a turn."""
    start = 0
    while start < records:
        size = _size(records - start, sizes)
        yield BatchPart(start, min(start + size, records), size)
        start += size


def _size(left: int, sizes: Sequence[int]) -> int:
    """Return the smallest size that holds all remaining rows and wastes little, or else the largest that is filled."""
    holding = (size for size in reversed(sizes) if left <= size <= _ROOM * left + _TURN)
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
