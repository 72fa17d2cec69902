"""A compiled step: the whole clipped sum as one function, compiled once for batches of one padded size.

What is compiled is the traced program; other means run autograd in between. Where there is no compiler, or a batch
holds a record without a finite gradient, the step runs as it would without.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor

log = logging.getLogger(__name__)

PaddedSum = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(inputs, targets, how many of the rows are records, clipping norm) -> clipped sum [d], squared norms [batch]."""

_STRIDE = 16
_ROOM = 1.25
"""Poisson batches vary: the first one's size and a quarter more, in multiples of sixteen, fits almost all of them."""

_TOLERANCE = 1e-4


class CompiledSum:
    """A weighted clipped sum, compiled.

    Attributes:
        rows: the padded size of a batch; larger batches are to be split.
    """

    def __init__(self, padded_sum: PaddedSum, records: int) -> None:
        """Prepare for batches of about `records` rows; compiled in the first call."""
        self.rows = _STRIDE * math.ceil(_ROOM * records / _STRIDE)
        self._plain = padded_sum
        self._compiled: PaddedSum | None = torch.compile(padded_sum, dynamic=False, fullgraph=True)
        self._proven = False

    def __call__(self, inputs: Tensor, targets: Tensor, clipping_norm: float) -> tuple[Tensor, Tensor] | None:
        """The clipped sum and squared norms of at most `rows` records; None if they must be computed otherwise."""
        if self._compiled is None:
            return None
        padded = self._padded(inputs, targets, clipping_norm)
        try:
            with torch.no_grad():
                total, squared = self._compiled(*padded)
                self._proven = self._proven or self._agrees(total, padded)
        except Exception as reason:
            if not self._proven:  # later on it is a record's fault
                log.warning("This step cannot be compiled here, and runs on without: %s", type(reason).__name__)
                log.debug("Why it cannot be compiled.", exc_info=reason)
                self._compiled = None
            return None
        return (total, squared[: len(inputs)]) if math.isfinite(float(total.sum())) else None

    def _padded(self, inputs: Tensor, targets: Tensor, clipping_norm: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The batch with copies of its first row up to `rows`; figures as tensors, which compiled code does not fix."""
        records, missing = len(inputs), self.rows - len(inputs)
        inputs, targets = (torch.cat([t, t[:1].expand(missing, *t.shape[1:])]) for t in (inputs, targets))
        norm = torch.tensor(clipping_norm, dtype=torch.float64, device=inputs.device)
        return inputs, targets, torch.tensor(records, device=inputs.device), norm

    def _agrees(self, total: Tensor, padded: tuple[Tensor, Tensor, Tensor, Tensor]) -> bool:
        """Whether the first compiled sum is what the function computes uncompiled.

        Raises:
            ArithmeticError: it is not.
        """
        expected = self._plain(*padded)[0]
        if not bool(expected.isfinite().all()):
            return False
        if float((total - expected).norm()) > _TOLERANCE * float(expected.norm()):
            raise ArithmeticError("the compiled sum differs from the uncompiled one")
        return True
