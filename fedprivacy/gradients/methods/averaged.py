"""Records of several rows: the rows' gradients, averaged by record before they are clipped.

Rows are views of a record (De et al. 2022), or the rows of a person, each with a target of its own; or views of these.
The average is a method like the others, so that the checks on made-up records cover it as well: the bits of a record in
any company, and the number of records that memory holds.
"""

from __future__ import annotations

from torch import Tensor

from fedprivacy.gradients.layout import Layout
from fedprivacy.gradients.selfcheck import Method
from fedprivacy.gradients.tape import Sized


def averaged(of_rows: Method, layout: Layout) -> Method:
    """Return the method for records, given that for rows."""
    return of_rows if layout.each == 1 else AveragedOverRows(of_rows, layout)


class AveragedOverRows:
    """Gradients of records as averages over their rows."""

    def __init__(self, of_rows: Method, layout: Layout) -> None:
        """Take the method for rows, and the rows that a record has."""
        self.name, self._of_rows, self._layout = of_rows.name, of_rows, layout

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes that the activations of the last batch took."""
        return self._of_rows.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Compute every trained parameter's piece, for targets [batch, ...] or [batch, m, ...]."""
        inputs, targets, weights = self._layout.weighted(inputs, targets)
        by_record = weights.view(-1, self._layout.each)
        rows = self._of_rows.pieces(inputs, targets, kept_bytes)
        pieces = [(sized.part, sized.piece.averaged(by_record, kept_bytes)) for sized in rows]
        return [Sized(part, piece, piece.norms()) for part, piece in pieces]
