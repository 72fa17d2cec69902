"""Method whose matrix products take one row at a time, for a processor whose products do not treat all rows alike.

Everything else of a batch is still computed at once, so that this costs a few times as much, whereas the loop costs a
hundred times as much.
"""

from __future__ import annotations

from torch import Tensor

from fedprivacy.gradients.products import one_row_at_a_time
from fedprivacy.gradients.selfcheck import Method
from fedprivacy.gradients.tape import Sized


class SingleRows:
    """The gradients of another method, computed from products of one row each."""

    def __init__(self, method: Method) -> None:
        self.name, self._method = f"{method.name}, one row at a time", method

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes that the activations of the last batch took."""
        return self._method.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """See `Method`."""
        with one_row_at_a_time():
            return self._method.pieces(inputs, targets, kept_bytes)
