"""Records of one shard, as tensors, however they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fedprivacy.tasks.sheet import CellTally, Fault
from fedprivacy.tasks.task import Shard, holding_nan

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Records = Shard | tuple[Tensor, Tensor]
"""Inputs, shape [records, ...], and targets, shape [records, ...]."""


_REASONS = 3
"""Maximum number of reasons that the owner is told of."""

_PAIRS = "let the Dataset return (input, target) of the prototype's shapes and types"


def shard_of(data: Records | Dataset[Any], prototype: tuple[Tensor, Tensor] | None) -> tuple[Shard, list[str]]:
    """Return the records as tensors, and for their owner why some of a `Dataset` cannot be read.

    Raises:
        ValueError: a tuple is no pair, or a `Dataset` has no length or index, or comes without a prototype.
    """
    if isinstance(data, Shard):
        return data, []
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"data is a tuple of {len(data)}; give inputs and targets.")
        return Shard(*data), []
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
    reasons = [_copied(cast(Any, data), place, inputs, targets) for place in range(len(data))]
    tally = CellTally()
    for reason in filter(None, reasons):
        tally.add("", Fault(reason, _PAIRS))
    null = torch.tensor([bool(reason) for reason in reasons]).bool()  # of nobody, too
    shard = Shard(inputs, targets, null=null | holding_nan(inputs) if inputs.is_floating_point() else null)
    return shard, [str(cells) for cells in tally.unreadable()[:_REASONS]]


def _copied(data: Any, place: int, inputs: Tensor, targets: Tensor) -> str:
    """Copy one record of a data set to its place; return why it is unreadable or not of the prototype's kind, or ""."""
    try:
        item = data[place]
        if isinstance(item, Mapping) or len(item) != 2:
            return f"an item that is a {type(item).__name__} of {len(item)}"
        values = [torch.as_tensor(value).detach() for value in item]
        for name, value, rows in zip(("input", "target"), values, (inputs, targets), strict=True):
            plain = type(value) is Tensor and value.layout is torch.strided and value.shape == rows.shape[1:]
            if not (plain and torch.can_cast(value.dtype, rows.dtype)):
                given, wanted = (f"shape {list(v.shape)} and {v.dtype}" for v in (value, rows[0]))
                return f"an {name} of {given}, where the prototype's is of {wanted}".replace("an target", "a target")
        for value, rows in zip(values, (inputs, targets), strict=True):
            rows[place].copy_(value)
    except Exception as error:  # any error that a record causes in the data set counts against that record alone
        return f"an item that raises {type(error).__name__}"
    return ""
