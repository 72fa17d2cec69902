"""Watches over a computation: each sees every operation of it, and refuses some.

One of them makes an index that a table does not have an error, on a GPU too, for lookups by a record's own numbers. A
CPU's kernel raises there. A GPU's aborts, and the process can never use the device again: one record would decide
whether its client ever answers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedprivacy.gradients.layout import WHOLE
from fedprivacy.gradients.products import in_range, on_gpu
from fedprivacy.gradients.selfcheck import DisagreementError

_aten = torch.ops.aten
_INDEX = (_aten.index.Tensor, _aten._unsafe_index.Tensor)
_ALONG_ONE_AXIS = (_aten.index_select.default, _aten.gather.default)
_READ = _aten._local_scalar_dense.default
_BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

_SHARE = 32768
"""Minimum number of elements for one of torch's threads."""

_NOTHING_COMPUTED = ("new_empty", "copy_", "constant_pad_nd", "stack", "cat")
_BY_ROWS_AND_COLUMNS = ("mm", "bmm", "addmm", "baddbmm")
_OTHERWISE = _NOTHING_COMPUTED + _BY_ROWS_AND_COLUMNS
"""Operations, besides views, that compute no element by itself."""


class ValueDependentError(ValueError):
    """The path of a batch through the model depends on its values."""


class Watch(TorchDispatchMode):
    """Base of dispatch modes; it avoids importing torch's compiler.

    Torch imports its compiler to keep it out of a dispatch mode, unless the mode opts out: that would take a second
    and a half in every process of a deployed client, which starts one for each message.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError


class OnePath(Watch):
    """Check that refuses forward passes which branch on, select or reorder records by their values.

    Book-keeping computes a batch at once and takes row i of every layer's input for record i. A model may sort its
    batch by length for a layer, or send some records to one layer and some to another: its outputs are right, but the
    rows belong to other records. On made-up records nothing may be sorted or sent, so the self-check alone cannot tell.

    Raises:
        ValueDependentError: an operation does any of these.
    """

    def __init__(self, *batch: Tensor) -> None:
        """Watch inputs [batch, ...], or inputs and targets."""
        super().__init__()
        self._records = len(batch[0])
        # Also holds tensors that are made of the batch, so that their addresses are not reused.
        self._kept = {_memory(rows): rows for rows in batch}

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not any(self._depends(t) for t in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if self._reorders(func, *args) or (func not in _INDEX and any(tag in func.tags for tag in _BY_VALUE)):
            what = "a number read out of a tensor (if, bool, .item)" if func is _READ else str(func)
            raise ValueDependentError(f"{what} makes records' paths through the model depend on their values")
        result = func(*args, **kwargs)
        self._kept |= {_memory(t): t for t in tree_leaves(result) if isinstance(t, Tensor)}
        return result

    def _reorders(self, func: Any, *args: Any) -> bool:
        """Return whether rows of a batch are looked up at places that depend on the batch, or by a mask."""
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


class NothingLeftOver(Watch):
    """Check that refuses tensors at whose end, or at the end of a thread's share, elements are left over for other
    code.

    This may happen in a part that is too small to rule it out, or among threads.

    Raises:
        DisagreementError: the result of an operation would leave elements over.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows, self._threads = rows, torch.get_num_threads()

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if _computes_no_element(func):
            return result
        for tensor in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and not self._fits(tensor.numel()):
                raise DisagreementError(f"{func} leaves elements over in a part of {self._rows} rows")
        return result

    def _fits(self, elements: int) -> bool:
        if elements < WHOLE or elements % self._rows:  # so short that all are left over, or no rows
            return True
        shares = min(self._threads, -(-elements // _SHARE))
        return elements % WHOLE == 0 and -(-elements // shares) % WHOLE == 0


@cache
def _computes_no_element(func: Any) -> bool:
    """Return whether an operation is a view, or computes no element by itself: to ask torch takes as long as to run
    it.
    """
    return func.is_view or func.overloadpacket.__name__ in _OTHERWISE


def _memory(tensor: Tensor) -> int:
    """Identify the memory that views share."""
    address: int = tensor.untyped_storage()._cdata
    return address


_LOOKUPS_ALONG_ONE_AXIS = (
    *("gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
    *("scatter", "scatter_add", "scatter_reduce"),
)
_BY_SEVERAL = ("index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put")
_OF_ALL = ("take", "put")
_TABLES = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")
_CLASSES = ("nll_loss_forward", "nll_loss2d_forward")


class IndicesInRange(Watch):
    """Mode in which a lookup raises an error, before a kernel meets an index that is not there.

    The indices are read outside of torch: `OnePath` sees no branch, and there is none, because a part in which this
    raises is computed record by record. What is in range whatever the records are (`products.in_range`) is not read,
    because a GPU's host would wait for it.

    Attributes:
        used: whether anything was looked up.

    Raises:
        IndexError: an index is out of range; it names neither record nor index.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for indices, known, ignored in (
            () if in_range else _lookups(func.overloadpacket.__name__.removesuffix("_"), args)
        ):
            self.used = True
            places = indices.cpu().numpy()
            outside = (places < known.start) | (places >= known.stop)
            if (outside if ignored is None else outside & (places != ignored)).any():
                raise IndexError("an index is out of range")
        return func(*args, **kwargs)


def _lookups(name: str, args: Sequence[Any]) -> Iterator[tuple[Tensor, range, int | None]]:
    """Yield the indices that an operation looks up, those that there are, and one more that counts as known."""
    if name in _LOOKUPS_ALONG_ONE_AXIS:
        yield args[2], range(args[0].shape[args[1]] if args[0].dim() else 1), None
    elif name in _BY_SEVERAL:
        for axis, places in enumerate(args[1]):
            if places is not None and places.dtype not in (torch.bool, torch.uint8):
                size = args[0].shape[axis]
                yield places, range(-size, size), None
    elif name in _OF_ALL:
        yield args[1], range(-args[0].numel(), args[0].numel()), None
    elif name in _TABLES:
        yield args[1], range(len(args[0])), None
    elif name in _CLASSES:
        outputs, classes, _, _, ignored = args
        yield classes, range(outputs.shape[1 if outputs.dim() > 1 else 0]), ignored


def checked_lookups(tensor: Tensor) -> AbstractContextManager[IndicesInRange | None]:
    """Return the mode for computations on the device of `tensor`: a CPU's kernels need none."""
    return IndicesInRange() if on_gpu(tensor) else nullcontext()
