"""Lookups by a record's own numbers: an index that a table does not have is an error, on a GPU too.

A CPU's kernel raises there. A GPU's aborts, and the process can never use the device again: one record would decide
whether its client ever answers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.watch import Watch

_ALONG_ONE_AXIS = (
    *("gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
    *("scatter", "scatter_add", "scatter_reduce"),
)
_BY_SEVERAL = ("index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put")
_OF_ALL = ("take", "put")
_TABLES = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")
_CLASSES = ("nll_loss_forward", "nll_loss2d_forward")

_Lookup = tuple[Tensor, range, int | None]
"""Indices, those that there are, and one more that counts as known."""


class IndicesInRange(Watch):
    """Mode in which a lookup raises an error, before a kernel meets an index that is not there.

    The indices are read outside of torch: `OnePath` sees no branch, and there is none, because a part in which this
    raises is computed record by record.

    Attributes:
        used: whether anything was looked up.

    Raises:
        IndexError: an index is out of range; it names neither record nor index.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for indices, known, ignored in _lookups(func.overloadpacket.__name__.removesuffix("_"), args):
            self.used = True
            places = indices.cpu().numpy()
            outside = (places < known.start) | (places >= known.stop)
            if (outside if ignored is None else outside & (places != ignored)).any():
                raise IndexError("an index is out of range")
        return func(*args, **kwargs)


def _lookups(name: str, args: Sequence[Any]) -> Iterator[_Lookup]:
    """Yield what an operation looks up."""
    if name in _ALONG_ONE_AXIS:
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


def in_range(tensor: Tensor) -> AbstractContextManager[object]:
    """Return the mode for computations on the device of `tensor`: a CPU's kernels need none."""
    return IndicesInRange() if tensor.is_cuda else nullcontext()


def with_known_classes(loss: Loss) -> Loss:
    """Wrap a loss so that a label out of range raises on a GPU, as on a CPU."""

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        with in_range(outputs):
            return loss(outputs, targets)

    return checked
