"""A batch in parts of few fixed sizes, so that what is computed of a record does not depend on how many there are.

Kernels choose their order of summation by the number of rows. So a part has one of few sizes, in all of which a
record's gradient is known to have the same bits (`fedprivacy.gradients.invariance`), and is filled up at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

WHOLE = 32
"""Elements that an elementwise kernel takes at a time, two of a processor's longest vectors: what is left over at the
end of a tensor goes through other code. So many rows leave nothing over, however wide they are."""

_ROOM, _TURN = 1.25, 48
"""A part may have so many times the rows that are left, and so many more: smaller ones would take more turns, each of
which costs as much as some rows."""

_SMALL = (24, 16, 12, 8)
"""Below those that leave nothing over at any width: each a multiple of eight or four, which convolutions like."""

_ALIGNMENT = 64
"""Bytes at whose multiples rows begin in memory of their own: kernels may treat what comes before apart."""

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class BatchPart(NamedTuple):
    """The records from `start` to before `stop`, computed in `size` rows."""

    start: int
    stop: int
    size: int


def sizes_up_to(largest: int, least: int = WHOLE) -> tuple[int, ...]:
    """The sizes that parts may have, the largest first: a power of two and its halves down to `least`."""
    sizes = [largest]
    while sizes[-1] > least:
        sizes.append(sizes[-1] // 2)
    return tuple(sizes)


def with_small(sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes and smaller ones: where a row takes long, few records are worth a size of their own."""
    return *sizes, *(size for size in _SMALL if size < sizes[-1])


def cut(records: int, sizes: Sequence[int]) -> Iterator[BatchPart]:
    """The batch in parts: the largest size as often as it is filled, then those that waste little or save a turn."""
    start = 0
    while start < records:
        size = _size(records - start, sizes)
        yield BatchPart(start, min(start + size, records), size)
        start += size


def _size(left: int, sizes: Sequence[int]) -> int:
    """The smallest that holds all that is left and wastes little, or else the largest that is filled."""
    holding = (size for size in reversed(sizes) if left <= size <= _ROOM * left + _TURN)
    full = (size for size in sizes if size < left)
    return next(chain(holding, full), sizes[-1])


def filled(rows: Tensor, size: int) -> Tensor:
    """Rows [batch, ...], with copies of the first up to `size`, as `plain` rows."""
    missing = size - rows.shape[0]
    return plain(torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) if missing else rows)


def plain(rows: Tensor) -> Tensor:
    """The same rows as a new tensor would hold them: kernels go by strides and addresses, too.

    Even an axis of length one has a stride, by which a convolution chooses the order of channels.
    """
    if not rows.is_contiguous() or rows.data_ptr() % _ALIGNMENT:
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(-1).view(rows.shape)


def same_bits(ones: Tensor, others: Tensor) -> bool:
    """True if all pairs of numbers have the same bits, or are both NaN."""
    if not ones.is_floating_point():
        return torch.equal(ones, others)
    bits = _BITS[ones.element_size()]
    same = ones.contiguous().view(bits) == others.contiguous().view(bits)
    return bool((same | (ones.isnan() & others.isnan())).all())
