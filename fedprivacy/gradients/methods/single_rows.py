"""A means whose matrix products take one row at a time, for a processor whose products do not treat all rows alike.

Everything else of a batch is still computed at once, so that this costs a few times as much and not, as the loop does,
a hundred times.
"""

from __future__ import annotations

from torch import Tensor

from fedprivacy.gradients.products import one_row_at_a_time
from fedprivacy.gradients.selfcheck import Means
from fedprivacy.gradients.tape import Sized


class SingleRows:
    """The same gradients as another means computes, from products of one row each."""

    def __init__(self, means: Means) -> None:
        self.name, self._means = f"{means.name}, one row at a time", means

    @property
    def held_bytes(self) -> int:
        """About how much memory the activations of the last batch took."""
        return self._means.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """See `Means`."""
        with one_row_at_a_time():
            return self._means.pieces(inputs, targets, kept_bytes)
