"""Pairwise summation of vectors that arrive in any order: only their ranks decide the sum's bits.

Floating-point addition is not associative, so a sum over several processes would depend on which process adds what.
Here the tree is fixed: rank 0 is added to rank 1, and 2 to 3, then the first pair to the second, and so on. Each
process adds up the branches for which it has all vectors, and the branches of several processes are joined. The sum is
also more accurate: its error grows with the logarithm of the number of vectors (Higham 2002, section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np
from torch import Tensor

_Branch = tuple[int, int]
"""(l, i): the sum of ranks i 2^l to (i + 1) 2^l - 1."""


class PairwiseSum:
    """A sum of vectors that arrive in any order. For n consecutive vectors, at most 2 log2(n) partial sums are kept."""

    def __init__(self) -> None:
        self._branches: dict[_Branch, Tensor | None] = {}

    def add(self, ranks: Sequence[int], rows: Tensor) -> None:
        """Add vectors, each rank once.

        Args:
            ranks: ranks of the vectors, counted from 0, ascending.
            rows: vectors, shape [ranks, d]; the sum takes over their memory and writes into it.
        """
        if len(ranks) == 1:
            self._grow((0, ranks[0]), rows[0])
            return
        gaps = (np.flatnonzero(np.diff(ranks) != 1) + 1).tolist()
        for start, stop in pairwise([0, *gaps, len(ranks)]):
            self._add_run(ranks[start], rows[start:stop])

    def skip(self, rank: int) -> None:
        """Note that there is no vector of this rank."""
        self._grow((0, rank), None)

    def join(self, other: PairwiseSum) -> None:
        """Add the partial sums of another sum, which is not used any more."""
        for branch, vector in other._branches.items():
            self._grow(branch, vector)

    def move(self, device: str) -> None:
        """Move the partial sums to a device; they add up to the same bits on any."""
        self._branches = {branch: None if v is None else v.to(device) for branch, v in self._branches.items()}

    @property
    def total(self) -> Tensor | None:
        """The sum, once every rank below some number was added or skipped; None: there was no vector."""
        whole = (self._branches[branch] for branch in sorted(self._branches))
        return reduce(_plus, whole, None)

    def _add_run(self, first: int, rows: Tensor) -> None:
        """Add consecutive ranks, all branches of a level at once."""
        level = 0
        while len(rows):
            if first % 2:
                self._grow((level, first), rows[0].clone())  # a copy, so that the other rows are freed
                first, rows = first + 1, rows[1:]
            if len(rows) % 2:
                self._grow((level, first + len(rows) - 1), rows[-1].clone())
                rows = rows[:-1]
            level, first, rows = level + 1, first // 2, rows[0::2] + rows[1::2]

    def _grow(self, branch: _Branch, vector: Tensor | None) -> None:
        """Add a branch to its sibling, and so on, as long as the sibling is there. (Addition is commutative, to the
        bit.)
        """
        level, place = branch
        while (sibling := (level, place ^ 1)) in self._branches:
            vector = _plus(vector, self._branches.pop(sibling), Tensor.add_)
            level, place = level + 1, place // 2
        self._branches[level, place] = vector


def _plus(
    one: Tensor | None, other: Tensor | None, add: Callable[[Tensor, Tensor], Tensor] = Tensor.add
) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return add(one, other.to(one.device))
