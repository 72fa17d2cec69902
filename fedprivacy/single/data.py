"""Records of one shard, as tensors, however they are given."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fedprivacy.tasks.task import Shard, holding_nan

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Records = Shard | tuple[Tensor, Tensor]
"""Inputs, shape [records, ...], and targets, shape [records, ...]."""


def shard_of(data: Records | Dataset[Any], prototype: tuple[Tensor, Tensor] | None) -> Shard:
    """Return the records as tensors.

    Raises:
        ValueError: a tuple is no pair, or a `Dataset` has no length or index, or comes without a prototype.
    """
    if isinstance(data, Shard):
        return data
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"data is a tuple of {len(data)}; give inputs and targets.")
        return Shard(*data)
    if not (isinstance(data, Sized) and hasattr(data, "__getitem__")):
        raise ValueError(
            f"data is of type {type(data).__name__}, without a length or an index; give inputs and targets, or a "
            "Dataset."
        )
    if prototype is None:
        raise ValueError(
            "prototype is open, and the types of a Dataset's records would be found out from all of them: give one "
            "made-up pair of their shapes and types, for example prototype=(torch.zeros(3), torch.tensor(0))."
        )
    inputs, targets = (like.new_zeros(len(data), *like.shape) for like in prototype)
    unreadable = torch.tensor([not _copied(cast(Any, data), place, inputs, targets) for place in range(len(data))])
    unreadable = unreadable.bool()  # of nobody, too
    return Shard(inputs, targets, null=unreadable | holding_nan(inputs) if inputs.is_floating_point() else unreadable)


def _copied(data: Any, place: int, inputs: Tensor, targets: Tensor) -> bool:
    """Copy one record of a data set to its place; return False if it is unreadable or not of the prototype's kind."""
    try:
        values = [torch.as_tensor(value).detach() for value in data[place]]
        for value, rows in zip(values, (inputs, targets), strict=True):
            plain = type(value) is Tensor and value.layout is torch.strided and value.shape == rows.shape[1:]
            if not (plain and torch.can_cast(value.dtype, rows.dtype)):
                return False
        for value, rows in zip(values, (inputs, targets), strict=True):
            rows[place].copy_(value)
    except Exception:  # any error that a record causes in the data set counts against that record alone
        return False
    return True
