"""Matrix products that treat all rows alike.

A product with a matrix of weights sums over an inner axis. If its length is no multiple of a processor's vectors,
kernels finish rows in different ways, depending on their places. Zeros up to the next multiple change no sum and leave
nothing to finish.

Some libraries still choose a kernel by the number of rows, or finish the last rows in another way. Within
`one_row_at_a_time` they never see more than one: a batched product of as many matrices of one row each, which takes up
to four times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LANES = 16
"""Number of float32 values in a processor's longest vectors."""

_READ_AT_ONCE = 4
"""Largest number of values that a GPU's kernel reads at once."""


class Switch:
    """A way to compute, which a thread takes for the duration of a block: `with switch(): ...`."""

    def __init__(self, name: str) -> None:
        self._on: ContextVar[bool] = ContextVar(name, default=False)

    def __bool__(self) -> bool:
        return self._on.get()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        before = self._on.set(True)
        try:
            yield
        finally:
            self._on.reset(before)


one_row_at_a_time = Switch("one row at a time")
"""Multiplies every row by itself."""

as_on_gpu = Switch("as on a GPU")
"""Computes on a CPU as on a GPU: for tests, and to count launches."""

as_recorded = Switch("as recorded")
"""Repeats recordings of parts on a CPU as a GPU does (`layout.RecordedPart`): for tests."""

in_range = Switch("in range")
"""Looks up what is there, whatever the records are, so that nobody needs to look at the indices."""


def on_gpu(tensor: Tensor) -> bool:
    """Return whether computations with a tensor take the ways that are made for a GPU."""
    return tensor.is_cuda or bool(as_on_gpu)


@cache
def zero_on(device: torch.device) -> Tensor:
    """Return a zero without axes on a device: a number would be copied there each time."""
    return torch.zeros((), device=device)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear`, [..., d] to [..., p], with a backward pass through autograd."""
    outputs = weight.shape[0]
    backwards = -outputs % LANES if torch.is_grad_enabled() and inputs.requires_grad else 0
    return _padded_linear(inputs, weight, bias, backwards)


def times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows [..., d] by a matrix [d, p], without a backward pass."""
    inner, outer = matrix.shape
    if inner % LANES == 0 and outer % LANES == 0:
        return product(rows, matrix)
    return product(pad(rows), _padded_matrix(matrix)).narrow(-1, 0, outer).contiguous()


def plus_product(base: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """Add the product of rows [batch, d] and a matrix [d, p] to a base [batch, p], with a backward pass."""
    inner, outer = matrix.shape
    if inner % LANES == 0 and outer % LANES == 0:
        return addmm(base, rows, matrix)
    return base + product(pad(rows), _padded_matrix(matrix)).narrow(1, 0, outer)


def addmm(base: Tensor, rows: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute `torch.addmm`, all rows at once or each by itself, without padding."""
    if not one_row_at_a_time:
        return torch.addmm(base, rows, matrix, out=out)
    batches = base.unsqueeze(1), rows.unsqueeze(1), matrix.expand(len(rows), *matrix.shape)
    return torch.baddbmm(*batches, out=None if out is None else out.unsqueeze(1)).squeeze(1)


def summed_outer(left: Tensor, right: Tensor) -> Tensor:
    """Sum outer products over positions for each record: [batch, t, p] and [batch, t, d] to [batch, p, d]."""
    p, d = left.shape[2], right.shape[2]
    if p % LANES == 0 and d % LANES == 0:
        return torch.bmm(left.transpose(1, 2), right)
    return torch.bmm(pad(left).transpose(1, 2), pad(right))[:, :p, :d].contiguous()


def pad(rows: Tensor) -> Tensor:
    """Pad rows [..., d] with zeros up to the next multiple of `LANES`."""
    missing = -rows.shape[-1] % LANES
    return functional.pad(rows, (0, missing)) if missing else rows


def align(rows: Tensor) -> Tensor:
    """Pad rows [..., d] on a GPU with zeros, so that each begins at an address where four numbers can be read at once.

    A GPU's kernel that sums a row adds the numbers before the first such address by themselves, so that the order of
    the sum would depend on the row's place.
    """
    missing = -rows.shape[-1] % _READ_AT_ONCE if on_gpu(rows) else 0
    return functional.pad(rows, (0, missing)) if missing else rows


def _padded_matrix(matrix: Tensor) -> Tensor:
    inner, outer = matrix.shape
    return functional.pad(matrix, (0, -outer % LANES, 0, -inner % LANES))


def product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows [..., d] by a matrix [d, p] and add a bias [p], all rows at once or each by itself."""
    if not one_row_at_a_time:
        return functional.linear(rows, matrix.t(), bias)
    single = rows.reshape(-1, 1, matrix.shape[0])
    batches = single, matrix.expand(len(single), *matrix.shape)
    products = torch.bmm(*batches) if bias is None else torch.baddbmm(bias, *batches)
    return products.view(*rows.shape[:-1], matrix.shape[1])


class AlikeProducts(TorchFunctionMode):
    """Mode in which every `linear` is ours: also inside modules, and under `torch.func`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one of torch's functions, or ours in its place."""
        if func is functional.linear:
            return _everywhere(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _everywhere(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `linear`, with torch's argument names; a transform does not tell whether there is a backward pass."""
    return _padded_linear(input, weight, bias, -weight.shape[0] % LANES)


def _padded_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, backwards: int) -> Tensor:
    """Compute `linear` with `backwards` rows of zeros below the weights, because the backward pass sums over rows."""
    missing = -weight.shape[1] % LANES
    if missing or backwards:
        weight = functional.pad(weight, (0, missing, 0, backwards))
    if not backwards:
        return product(pad(inputs), weight.t(), bias)
    outputs = product(pad(inputs), weight.t()).narrow(-1, 0, weight.shape[0] - backwards)
    return outputs.contiguous() if bias is None else outputs + bias
