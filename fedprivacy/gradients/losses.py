"""Losses that keep the records of a batch apart."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fedprivacy.gradients.errors import LossShapeError

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> one loss for each record, shape [batch]."""


def checked_losses(losses: Tensor, records: int) -> Tensor:
    """The losses, if they are one for each record.

    Raises:
        LossShapeError: they are not.
    """
    if losses.shape != (records,):
        raise LossShapeError(
            f"The task's loss returned shape {list(losses.shape)} for a batch of {records}; "
            "return one value for each record, shape [batch] (for example reduction='none')."
        )
    return losses
