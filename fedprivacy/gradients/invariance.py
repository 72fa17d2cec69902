"""Check that a record's results are the same, bit for bit, whatever else is in its batch.

The clip bounds the contribution of a record's own gradient to the sum. It bounds the whole change of the sum only if no
other gradient changes with it. Mathematically none does. In floating point one does wherever a kernel treats a row by
its place or by the number of rows: another order of summation changes the last bit, and a server can choose parameters
that amplify this to another gradient.

Kernels choose their code by shapes, strides and addresses, and by very few values (a whole vector takes the slow path
if one of its numbers is huge). So made-up records are moved, repeated, surrounded by NaN, infinity and subnormal
numbers, and cut off, under parameters and numbers that keep every unit alive: a method that treats these alike treats
all records alike. Accuracy is not checked here: a wrong gradient is still clipped by its own norm, so privacy holds.

A kernel may treat only the last few rows differently, and change a last bit of only some records there, which later
layers hide, for example a loss that is flat at made-up records but not at real ones. So the products of a batch are
also tried one by one, where nothing hides it: equal rows must have equal results in every place
(`EqualRowsStayEqual`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedprivacy.gradients.layout import WHOLE, plain, same_bits
from fedprivacy.gradients.models import restoring_parameters
from fedprivacy.gradients.pieces import Placed, squared_norms
from fedprivacy.gradients.selfcheck import DisagreementError, Method, PlaceError
from fedprivacy.gradients.watch import NothingLeftOver, Watch

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
        if name in _FACTORS or name in _ATTENTION or (name in _CONVOLUTIONS and _is_of_records(name, args)):
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


def _is_of_records(name: str, args: Sequence[Any]) -> bool:
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


EXTREMES = (math.nan, math.inf, -1e30, 1e-40, 0.0)
"""Values of the rows around a record: each would show if it touched the record's own."""

_WIDEST = 20
"""Binary exponent of the largest ratio of records' sizes; parameters vary by a third of it, up and down."""


def sizes_that_agree(
    method: Method, model: nn.Module, probe: tuple[Tensor, Tensor], sizes: Sequence[int], kept_bytes: int
) -> tuple[int, ...]:
    """Find the sizes of parts in which a record's gradient has the same bits, in any place and any company.

    The wanted sizes are given with the largest first; it is returned together with those that agree with it. The probe
    has the shape and type of the real records. The model's trained parameters are changed during the check.

    Raises:
        PlaceError: in the largest size, a result depends on a record's place or company.
        DisagreementError: the size leaves elements over, or no gradient was usable for the check.
        Exception: any error that the method raises on records like the made-up ones.
    """
    agreeing, seen = list(sizes), False
    for seed, wide in enumerate((False, True, False)):
        generator = torch.Generator().manual_seed(seed)
        with restoring_parameters(model) as trained:
            make_hostile(trained, generator, wide=wide)
            inputs = hostile_rows(probe[0], sizes[0], generator, wide=wide)
            records = inputs, hostile_rows(probe[1], sizes[0], generator, wide=False)
            with _products_tried(sizes[0], seed == 0), NothingLeftOver(sizes[0]):
                whole = _measured(method, *records, kept_bytes)
            for rows, company in _arrangements(sizes[0], generator):
                moved = _measured(method, *_rearrange(*records, rows, company), kept_bytes)
                if not _same(whole, rows[~company], moved, (~company).nonzero().squeeze(1)):
                    raise PlaceError(f"{method.name} computes a record by its place in the batch")
            agreeing = [s for s in agreeing if _agrees(method, records, whole, s, kept_bytes, first=seed == 0)]
            seen = seen or _alive(whole)
    if not seen:
        raise DisagreementError(f"{method.name} showed no gradient by which it could be judged")
    return tuple(agreeing)


def _agrees(
    method: Method, records: tuple[Tensor, Tensor], whole: _Measured, size: int, kept_bytes: int, *, first: bool
) -> bool:
    """Return whether records have the same gradients in parts of another size: all of them, or a small size's first.

    The last part is filled up with the first records. Products are tried only in the `first` comparison of a size, and
    elements left over are looked for only in its first part: they follow from shapes, and all parts have the same.
    """
    count = len(records[0])
    if size == count:
        return True
    if size < WHOLE:
        count = min(count, WHOLE)
    for start in range(0, count, size):
        rows = torch.arange(start, start + size) % count
        inputs, targets = (plain(tensor[rows]) for tensor in records)
        try:
            with _products_tried(size, first and start == 0), nullcontext() if start else NothingLeftOver(size):
                fewer = _measured(method, inputs, targets, kept_bytes)
        except Exception:  # a size that cannot be computed is none
            return False
        if not _same(whole, rows, fewer, torch.arange(size)):
            return False
    return True


def _products_tried(size: int, tried: bool) -> AbstractContextManager[object]:
    """Return the check of products. Enter it before other watches, or they would see what it computes."""
    return EqualRowsStayEqual(size) if tried else nullcontext()


class _Measured(NamedTuple):
    """A batch's pieces, and their squared norms [pieces, batch]."""

    pieces: list[Placed]
    squared: Tensor


def _measured(method: Method, inputs: Tensor, targets: Tensor, kept_bytes: int) -> _Measured:
    placed = method.pieces(inputs, targets, kept_bytes)
    return _Measured(placed, squared_norms([piece for _, piece in placed], range(len(placed)), len(placed)))


def _same(batch: _Measured, rows: Tensor, other_batch: _Measured, other_rows: Tensor) -> bool:
    """Return whether records at `rows` of one batch have the same pieces, bit for bit, as those at `other_rows` of
    another.
    """
    if [part for part, _ in batch.pieces] != [part for part, _ in other_batch.pieces]:
        return False
    of_each = zip(batch.pieces, batch.squared, other_batch.pieces, other_batch.squared, strict=True)
    for (_, one), squared, (_, other), other_squared in of_each:
        mine, theirs = [squared, *one.sources], [other_squared, *other.sources]
        if [t.shape[1:] for t in mine] != [t.shape[1:] for t in theirs]:  # of this size, it is kept in another form
            return False
        if not all(same_bits(a[rows], b[other_rows]) for a, b in zip(mine, theirs, strict=True)):
            return False
    return True


def _alive(whole: _Measured) -> bool:
    """Return whether at least half of the records have a gradient that is finite and not zero."""
    squared = whole.squared.sum(0)
    return bool(((squared > 0) & squared.isfinite()).double().mean() >= 0.5)


def _arrangements(size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the record to put at each place of a batch, and a mask of the places to fill with company, bool."""
    places = torch.arange(size)
    yield torch.randperm(size, generator=generator), torch.zeros(size, dtype=torch.bool)
    yield places.roll(1), torch.rand(size, generator=generator) < 0.5 * (size > 1)


def _rearrange(inputs: Tensor, targets: Tensor, rows: Tensor, company: Tensor) -> tuple[Tensor, Tensor]:
    """Rearrange the records and put extreme ones among them; for whole numbers, the first record."""
    inputs, targets = inputs[rows].clone(), targets[rows].clone()
    for tensor in (inputs, targets):
        if tensor.is_floating_point():
            places = company.nonzero().squeeze(1).to(tensor.device)
            extremes = torch.tensor(EXTREMES, dtype=tensor.dtype, device=tensor.device)
            tensor[places] = extremes[places % len(extremes)].view(-1, *[1] * (tensor.dim() - 1))
        else:
            tensor[company] = tensor[0].clone()
    return plain(inputs), plain(targets)


def hostile_rows(probe: Tensor, count: int, generator: torch.Generator, *, wide: bool) -> Tensor:
    """Make records or targets of the made-up ones' shape and type: of both signs and, if `wide`, of very different
    sizes.

    Whole numbers are drawn from the made-up ones: the model may not accept others.
    """
    shape = (count, *probe.shape[1:])
    if not probe.is_floating_point():
        choice = torch.randint(len(probe), shape, generator=generator).to(probe.device)
        return plain(probe.gather(0, choice))
    rows = torch.randn(shape, generator=generator)
    if bool((absent := probe.isnan()).any()):  # rows of a person that are not there
        rows[absent.cpu()[torch.randint(len(probe), (count,), generator=generator)]] = math.nan
    if wide:
        rows *= _powers_of_two(-_WIDEST, _WIDEST, (count, *[1] * (probe.dim() - 1)), generator)
    return plain(rows.to(probe))


def make_hostile(trained: list[nn.Parameter], generator: torch.Generator, *, wide: bool) -> None:
    """Give the trained parameters values that keep numbers alive from layer to layer.

    If `wide`, single weights are up to 2^6 times as large, or as small, and all lie in one vector, as in training: then
    their addresses have other alignments.
    """
    if wide and trained:
        nn.utils.vector_to_parameters(torch.cat([p.data.flatten() for p in trained]), trained)
    for p in trained:
        values = torch.randn(p.shape, generator=generator) / (p[0].numel() if p.dim() > 1 else 1) ** 0.5
        if wide:
            values *= _powers_of_two(-_WIDEST // 3, _WIDEST // 3, p.shape, generator)
        p.data.copy_(values)


def _powers_of_two(least: int, end: int, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.exp2(torch.randint(least, end, shape, generator=generator).float())
