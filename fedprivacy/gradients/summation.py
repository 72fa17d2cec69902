"""Sums of clipped gradients that stay within the mechanism's allowance, however many records there are.

Adding many float32 vectors in float32 is inexact: by up to the number of records times the rounding of one addition.
Here float32 holds the sum of at most `BLOCK` records, and float64 the sum of the blocks. The records of a block depend
on places in the batch alone, so that neighbouring batches differ in few blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedprivacy.gradients.pieces import STRETCH
from fedprivacy.gradients.tape import Sized

BLOCK = 128
"""Number of records whose gradients are added in float32."""

_SMALL = 4096
"""Largest number of entries of parameters that are added in float64 directly, which is cheaper than several small
products.
"""


class Sums:
    """The sums of a batch's clipped gradients, one for each parameter.

    Formal guarantee: let c_r be the records' scaled gradients as float32 numbers, each of norm at most C, and B the
    records whose places lie in one block. Then float32 rounding moves the sum over B by at most
    (`STRETCH` + 3) 2^-24 `BLOCK` C in Euclidean norm, whatever the order in which a matrix product adds (Higham 2002,
    section 3.1). float64 adds to this n^2 / `BLOCK` 2^-53 C for n records in all. The consequences are in
    `fedprivacy.mechanisms.gaussian_sum`.
    """

    def __init__(self, shapes: list[torch.Size], dtype: torch.dtype, device: torch.device, largest: int) -> None:
        """Start at zero: `dtype` is the type of a block's sum, `largest` the rows of a batch's largest part."""
        large = {place: shape for place, shape in enumerate(shapes) if shape.numel() > _SMALL}
        self._blocks = {place: torch.empty(shape, dtype=dtype, device=device) for place, shape in large.items()}
        self._block_rows = min(BLOCK, STRETCH * largest)
        self._held, self._finished = 0, False  # rows of the present block; True after the first block
        self._total = torch.empty(sum(shape.numel() for shape in shapes), dtype=torch.float64, device=device)
        parts = self._total.split([shape.numel() for shape in shapes])
        self._totals = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        for place, total in enumerate(self._totals):
            if place not in large:  # a large parameter begins with its first block
                total.zero_()

    def add(self, pieces: Sequence[Sized], scales: Sequence[Tensor]) -> None:
        """Add a part of a batch: for each piece the records' factors [rows], float64, 0 for a row that is no record."""
        large = []
        for sized, scale in zip(pieces, scales, strict=True):
            block = self._blocks.get(sized.part.place)
            if block is None:
                sized.piece.add_weighted_sum(scale, sized.part.of(self._totals[sized.part.place]))
            else:
                large.append((sized.piece, scale.to(block.dtype), sized.part.of(block)))
        rows = len(scales[0])
        for start in range(0, rows, self._block_rows):
            stop = min(start + self._block_rows, rows)
            self._begin()
            for first in range(start, stop, STRETCH):
                for piece, weights, out in large:
                    piece.add_weighted_sum(weights[first : min(first + STRETCH, stop)], out, first)
            self._advance(stop - start)

    def skip(self, rows: int) -> None:
        """Skip a part of a batch in which no record counts, so that later records keep their places."""
        self._begin()
        self._advance(rows)

    def total(self) -> Tensor:
        """Return the sum, shape [d], float64."""
        if self._held or not self._finished:
            self._begin()
            self._finish()
        return self._total

    def _begin(self) -> None:
        if self._held == 0:
            for block in self._blocks.values():
                block.zero_()

    def _advance(self, rows: int) -> None:
        self._held += rows
        if self._held >= self._block_rows:
            self._finish()

    def _finish(self) -> None:
        for place, block in self._blocks.items():
            if self._finished:
                self._totals[place].add_(block)
            else:
                self._totals[place].copy_(block)
        self._held, self._finished = 0, True
