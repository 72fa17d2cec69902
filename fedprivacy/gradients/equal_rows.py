"""Products that treat equal rows alike: each matrix product of a computation is tried by itself.

A kernel that treats the last few rows differently changes a last bit of some records there. Later layers may hide it,
for example a loss that is flat at made-up records but not at real ones. So products are tried one by one, where nothing
hides it: equal rows must have equal results in every place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedprivacy.gradients.parts import same_bits
from fedprivacy.gradients.selfcheck import PlaceError
from fedprivacy.gradients.watch import Watch

ENOUGH = 64
"""Number of values of each row that are compared. Another order of a sum of random numbers changes the last bit in at
least four of ten cases, measured for sums of 3 to 784 numbers: all of them miss it with a probability below 1e-14.
"""

_FACTORS = {"mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addmv": (1, 2)}
"""Positions of rows and matrix among a product's arguments."""

_SPREAD = 6.0
"""Standard deviation of the exponents of what cancels: products of half precision are exact in float32, so that sums of
a few numbers of one size would not be rounded at all. Measured, another order of 16 then shows in nine of ten cases.
"""

_CONVOLUTIONS = ("convolution", "convolution_backward")
_ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")

_ALIGNMENT = 64


class EqualRowsStayEqual(Watch):
    """Check that computes every product of a computation again on rows that are all equal.

    Shapes, strides and addresses are those of the computation. Every other time the second half of each sum cancels the
    first, so that only rounding remains: otherwise half precision would round it away.

    Raises:
        PlaceError: equal rows have different results.
    """

    def __init__(self, size: int, axes: Sequence[int] = (0,)) -> None:
        """Take the number of records, and the axes along which rows must be treated alike.

        A product whose first axis is no multiple of the number does not belong to a batch.
        """
        super().__init__()
        self._size, self._axes, self._generator = size, axes, torch.Generator().manual_seed(size)
        self._tried: set[object] = set()

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _FACTORS or name in _ATTENTION or (name in _CONVOLUTIONS and _of_records(name, args)):
            kind = (func, *map(_layout, args))
            first = tree_leaves(result)[0]
            if kind not in self._tried and first.numel() > 0 and first.shape[0] % self._size == 0:
                self._tried.add(kind)
                for axis in self._axes[: first.dim()]:
                    self._try(func, args, kwargs, axis, first.shape[axis], first.numel())
        return result

    def _try(  # noqa: PLR0917 - an operation and where its rows are
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], axis: int, rows: int, numbers: int
    ) -> None:
        for turn in range(max(2, -(-ENOUGH * rows // numbers))):
            made = [self._with_equal_rows(arg, axis, rows) for arg in args]
            factors = _FACTORS.get(func.overloadpacket.__name__)
            if factors and turn % 2 and made[factors[0]] is not args[factors[0]]:
                self._take_back(made, *factors)
            named = {name: self._with_equal_rows(arg, axis, rows) for name, arg in kwargs.items()}
            found = tree_leaves(func(*made, **named))[0]
            if not same_bits(found, found.narrow(axis, 0, 1).expand_as(found)):
                raise PlaceError(f"{func} computes equal rows differently")

    def _with_equal_rows(self, arg: Any, axis: int, rows: int) -> Any:
        """Replace all rows by one: random numbers, or the first row of masks and ids; leave other arguments as they
        are.
        """
        if not isinstance(arg, Tensor) or arg.dim() <= axis or arg.shape[axis] != rows:
            return arg
        first, made = _once(arg.narrow(axis, 0, 1)), _like(arg)
        _once(made).copy_(self._random(first) if arg.is_floating_point() else first)
        return made

    def _take_back(self, tensors: list[Any], rows: int, matrix: int) -> None:
        """Make the second half of each sum the negative of the first, by the matrix's sign, and the addend zero.

        The rows may be expanded: then the halves of each are the same already.
        """
        half, own = tensors[rows].shape[-1] // 2, _once(tensors[rows])
        if own.shape[-1] == tensors[rows].shape[-1]:
            own[..., half : 2 * half] = own[..., :half]
        one = tensors[matrix][0] if tensors[matrix].dim() == 3 else tensors[matrix]
        inner = self._random(one) * self._random(one).mul_(_SPREAD).exp2_()
        inner[half : 2 * half], inner[2 * half :] = -inner[:half], 0.0
        tensors[matrix] = inner.expand_as(tensors[matrix]) if one is not tensors[matrix] else _like(one).copy_(inner)
        tensors[:rows] = map(torch.zeros_like, tensors[:rows])

    def _random(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self._generator).to(like)


def _of_records(name: str, args: Sequence[Any]) -> bool:
    """Return False for a convolution whose first result is the gradient of weights: its rows are not records."""
    return name == "convolution" or bool(args[-1][0])


def _layout(arg: Any) -> object:
    """Return the properties of an argument by which a kernel is chosen."""
    if not isinstance(arg, Tensor):
        return str(arg)
    return arg.shape, arg.stride(), arg.dtype, arg.data_ptr() % _ALIGNMENT


def _once(tensor: Tensor) -> Tensor:
    """Return a view without the repetitions of an expanded tensor, such as the colours of a grey image."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _like(tensor: Tensor) -> Tensor:
    """Allocate memory of the same layout, at an address of the same alignment."""
    offset = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.new_empty(offset + extent).as_strided(tensor.shape, tensor.stride(), offset)
