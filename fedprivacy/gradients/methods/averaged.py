"""A means for records that come as several views of themselves: the gradients of the rows, averaged by record.

It is a means like the others, so that what is judged on made-up records is what is done with true ones, averages and
all: which bits a record has in which company, and how many records memory holds.
"""

from __future__ import annotations

from torch import Tensor

from fedprivacy.gradients.selfcheck import Means
from fedprivacy.gradients.tape import Sized


class AveragedOverViews:
    """Records' gradients as the means of their views' (De et al. 2022); inputs have the shape [batch, views, ...]."""

    def __init__(self, rows: Means, views: int) -> None:
        """Take the means for rows, each of which is one view of a record."""
        self.name, self._rows, self._views = rows.name, rows, views

    @property
    def held_bytes(self) -> int:
        """About how much memory the activations of the last batch took."""
        return self._rows.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Every trained parameter's piece, of targets [batch, ...] that all views of a record share."""
        rows = self._rows.pieces(inputs.flatten(0, 1), targets.repeat_interleave(self._views, 0), kept_bytes)
        averaged = [(sized.part, sized.piece.averaged(self._views, kept_bytes)) for sized in rows]
        return [Sized(part, piece, piece.norms()) for part, piece in averaged]
