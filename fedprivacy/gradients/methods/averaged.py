"""Method for records that come as several views of themselves: the gradients of the rows, averaged by record.

It is a method like the others, so that the checks on made-up records cover the averages as well: the bits of a record
in any company, and the number of records that memory holds.
"""

from __future__ import annotations

from torch import Tensor

from fedprivacy.gradients.selfcheck import Method
from fedprivacy.gradients.tape import Sized


class AveragedOverViews:
    """Gradients of records as averages over their views (De et al. 2022); inputs have shape [batch, views, ...]."""

    def __init__(self, rows: Method, views: int) -> None:
        """Take the method for rows, each of which is one view of a record."""
        self.name, self._rows, self._views = rows.name, rows, views

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes that the activations of the last batch took."""
        return self._rows.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Compute every trained parameter's piece, for targets [batch, ...] that all views of a record share."""
        rows = self._rows.pieces(inputs.flatten(0, 1), targets.repeat_interleave(self._views, 0), kept_bytes)
        averaged = [(sized.part, sized.piece.averaged(self._views, kept_bytes)) for sized in rows]
        return [Sized(part, piece, piece.norms()) for part, piece in averaged]
