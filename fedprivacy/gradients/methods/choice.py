"""Whether all records of a batch take one path through a model, in the order in which they came.

Book-keeping computes a batch at once and takes row i of what every layer reads for record i. A model may sort its batch
by length for a layer, or send some records to one layer and some to another: its outputs are sound, but the rows are
others'. On made-up records such a model may sort and send nothing, so the self-check alone cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedprivacy.gradients.watch import Watch

_aten = torch.ops.aten
_INDEX = (_aten.index.Tensor, _aten._unsafe_index.Tensor)
_ALONG_ONE_AXIS = (_aten.index_select.default, _aten.gather.default)
_BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class ValueDependentError(ValueError):
    """The path of a batch through the model depends on its values."""


class OnePath(Watch):
    """For the length of a forward pass, refuses whatever branches on, selects or reorders records by their values."""

    def __init__(self, batch: Tensor) -> None:
        super().__init__()
        self._records = len(batch)
        self._kept = {_memory(batch): batch}  # what is computed from the batch; kept, or addresses would be used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation of the forward pass.

        Raises:
            ValueDependentError: it does any of that.
        """
        kwargs = kwargs or {}
        if any(self._depends(t) for t in tree_leaves((args, kwargs))):
            if self._reorders(func, *args) or (func not in _INDEX and any(tag in func.tags for tag in _BY_VALUE)):
                raise ValueDependentError(f"{func} makes records' paths through the model depend on their values")
            result = func(*args, **kwargs)
            self._kept |= {_memory(t): t for t in tree_leaves(result) if isinstance(t, Tensor)}
            return result
        return func(*args, **kwargs)

    def _reorders(self, func: Any, *args: Any) -> bool:
        """Whether rows of a batch are looked up at places that depend on the batch, or by a mask."""
        if func in _INDEX:
            source, places = args[0], dict(enumerate(args[1]))
        elif func in _ALONG_ONE_AXIS:
            source, places = args[0], {args[1] % max(args[0].dim(), 1): args[2]}
        else:
            return False
        if any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in places.values()):
            return True
        return self._depends(source) and any(
            self._depends(index) and source.shape[axis] == self._records for axis, index in places.items()
        )

    def _depends(self, value: object) -> bool:
        return isinstance(value, Tensor) and _memory(value) in self._kept


def _memory(tensor: Tensor) -> int:
    """What views share."""
    address: int = tensor.untyped_storage()._cdata
    return address
