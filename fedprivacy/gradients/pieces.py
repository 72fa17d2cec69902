"""Per-record gradients of one parameter, each in the form that is cheapest to hold.

A layer's gradient for one record is a sum over positions t of outer products g_t a_t^T of output gradients and inputs.
Its norm, and its weighted sum over the records, can often be had without keeping it for every record. Each piece
answers both questions, and can be written out when something else must be added to it first.

The clip is only as good as the agreement between the two answers: the norm must be that of the vector that is summed.
So no piece takes the norm of an expression that cancels and sums another that does not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Writer = Callable[[int, int], "Written"]
"""(start, stop) -> the written gradients of records start to stop."""

_STRETCH = 2**14
"""Entries whose squares are added in float32 before float64 takes over."""

_SMALLEST_SURE_NORM = 1e-12
"""Squares of entries below 1e-19 lose digits in float32; a norm above this bound does not notice them."""

_CHUNK_BYTES = 16 * 2**20
"""Written gradients that are in flight at a time: what a processor's cache still holds."""

_LONGEST_FACTOR = 2.0**64
"""With a longer factor a gradient counts as not finite: scaled down, the other factor would lose digits in float32."""

_CANCELLATION = 2.0**-9
"""A Gram norm below this share of its largest possible value is summed in float64, or float32 rounding would exceed
the mechanism's allowance for it."""


class Piece(ABC):
    """The gradients of one parameter (or of some of its rows) for every record of a batch."""

    @property
    def kept_bytes(self) -> int:
        """Memory that the piece takes beyond the layer's inputs and output gradients."""
        return 0

    @abstractmethod
    def norms(self) -> Tensor:
        """Euclidean norm of each record's gradient, shape [batch], float32 or float64, right to 2e-5."""

    @abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Add the sum over records of weight times gradient to `out`.

        Args:
            weights: shape [batch], of the dtype of `out`.
            out: shape [*parameter]; changed in place.
        """

    @abstractmethod
    def gradients(self) -> Tensor:
        """Every record's gradient written out, shape [batch, *parameter]."""

    def averaged(self, views: int, kept_bytes: int) -> Piece:
        """The gradients of records that have `views` rows each, one after another: the mean of the rows.

        Args:
            views: rows of each record.
            kept_bytes: how many bytes of written gradients may be kept.
        """
        return Written(self.gradients().unflatten(0, (-1, views)).mean(1))


class Written(Piece):
    """Gradients written out and kept.

    Attributes:
        kept: shape [batch, ...], the parameter's axes in the order that was cheapest to write.
        axes: for each axis of the parameter, the axis of a record's written gradient; None: as they stand.
    """

    def __init__(self, kept: Tensor, axes: tuple[int, ...] | None = None) -> None:
        self._kept, self._axes = kept, axes

    @property
    def kept_bytes(self) -> int:
        """See `Piece`."""
        return self._kept.nbytes

    def norms(self) -> Tensor:
        """See `Piece`. What vanishes in float32 here is far below any clipping norm."""
        return row_norms(self._kept)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """See `Piece`."""
        rows = _in(out.dtype, self._kept.flatten(1).t())
        if self._axes is None:
            out.view(-1).addmv_(rows, weights)
        else:
            out.add_(torch.mv(rows, weights).view(self._kept.shape[1:]).permute(self._axes))

    def gradients(self) -> Tensor:
        """See `Piece`."""
        return self._kept if self._axes is None else self._kept.permute(0, *(axis + 1 for axis in self._axes))


class Rewritten(Piece):
    """Gradients too large to keep: written twice, some records at a time, once for the norms and once for the sum."""

    def __init__(self, write: Writer, records: int, chunk: int) -> None:
        self._write, self._records, self._chunk = write, records, chunk

    def norms(self) -> Tensor:
        """See `Piece`."""
        return torch.cat([self._write(*chunk).norms() for chunk in self._chunks()])

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """See `Piece`."""
        for start, stop in self._chunks():
            self._write(start, stop).add_weighted_sum(weights[start:stop], out)

    def gradients(self) -> Tensor:
        """See `Piece`."""
        return self._write(0, self._records).gradients()

    def averaged(self, views: int, kept_bytes: int) -> Piece:
        """See `Piece`."""

        def write(start: int, stop: int) -> Written:
            rows = self._write(start * views, stop * views).gradients()
            return Written(rows.unflatten(0, (-1, views)).mean(1))

        return Rewritten(write, self._records // views, max(1, self._chunk // views))

    def _chunks(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self._records, self._chunk):
            yield start, min(start + self._chunk, self._records)


class Outer(Piece):
    """One outer product for each record: output gradients [batch, p] times inputs [batch, d]."""

    def __init__(self, inputs: Tensor, output_gradients: Tensor) -> None:
        self._inputs, self._output_gradients = inputs, output_gradients

    def averaged(self, views: int, kept_bytes: int) -> Piece:
        """See `Piece`."""
        inputs, gradients = (factor.unflatten(0, (-1, views)) for factor in self.factors)
        return over_positions(inputs, gradients / views, kept_bytes)

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Inputs and output gradients."""
        return self._inputs, self._output_gradients

    def norms(self) -> Tensor:
        """See `Piece`. The norm of an outer product is the product of the norms, however small one of them is."""
        return _factor_norms(self._inputs) * _factor_norms(self._output_gradients)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """See `Piece`."""
        scaled = self._output_gradients * weights.unsqueeze(1)
        out.addmm_(_in(out.dtype, scaled.t()), _in(out.dtype, self._inputs))

    def gradients(self) -> Tensor:
        """See `Piece`."""
        return self._output_gradients.unsqueeze(2) * self._inputs.unsqueeze(1)


class Gram(Piece):
    """Outer products over few positions of a large parameter: the ghost norm (Goodfellow 2015; Li et al. 2022).

    The squared norm of sum_t g_t a_t^T is sum_st <a_s, a_t> <g_s, g_t>. In float32 that cancels to nothing where the
    inputs share a large offset and the output gradients sum to almost zero, and a norm of nothing is never clipped.
    Here the products are float64, which holds those of float32 numbers exactly; and where a record's terms cancel, the
    sum is taken in float64, too.
    """

    def __init__(self, inputs: Tensor, output_gradients: Tensor) -> None:
        self._inputs, self._output_gradients = inputs, output_gradients

    def norms(self) -> Tensor:
        """See `Piece`."""
        inputs, grads = self._inputs.double(), self._output_gradients.double()
        gram = torch.bmm(inputs, inputs.transpose(1, 2)).mul_(torch.bmm(grads, grads.transpose(1, 2)))
        squared = gram.sum((1, 2)).clamp_(min=0.0)
        one, other = inputs.square().sum((1, 2)), grads.square().sum((1, 2))
        squared.masked_fill_(torch.maximum(one, other) > _LONGEST_FACTOR**2, torch.inf)
        largest = one * other
        if bool((squared < _CANCELLATION**2 * largest).any()):
            self._inputs, self._output_gradients = inputs, grads
        return squared.sqrt_()

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """See `Piece`."""
        dtype = torch.promote_types(self._inputs.dtype, out.dtype)
        scaled = (self._output_gradients * weights.view(-1, 1, 1)).flatten(0, 1).to(dtype)
        inputs = self._inputs.flatten(0, 1).to(dtype)
        if dtype == out.dtype:
            out.addmm_(scaled.t(), inputs)
        else:
            out.add_(torch.mm(scaled.t(), inputs))

    def gradients(self) -> Tensor:
        """See `Piece`."""
        return torch.bmm(self._output_gradients.transpose(1, 2), self._inputs)

    def averaged(self, views: int, kept_bytes: int) -> Piece:
        """See `Piece`."""
        inputs, gradients = (f.unflatten(0, (-1, views)).flatten(1, 2) for f in (self._inputs, self._output_gradients))
        return over_positions(inputs, gradients / views, kept_bytes)


class Rows(Piece):
    """Gradients of a table, of which each record touches few rows: an embedding's.

    Rows that a record touches more than once are added up before the norm is taken.
    """

    def __init__(self, ids: Tensor, gradients: Tensor, table: torch.Size) -> None:
        """Take ids [batch, positions], the gradients of their rows [batch, positions, d] and the table's shape."""
        self._table, self._records = table, len(ids)
        keys = ids + torch.arange(len(ids), device=ids.device).unsqueeze(1) * table[0]
        touched, place = torch.unique(keys, return_inverse=True)
        rows = gradients.new_zeros(len(touched), table[1]).float()
        self._rows = rows.index_add_(0, place.flatten(), gradients.flatten(0, 1).to(rows.dtype))
        self._record, self._id = touched // table[0], touched % table[0]

    @property
    def kept_bytes(self) -> int:
        """See `Piece`."""
        return self._rows.nbytes

    def norms(self) -> Tensor:
        """See `Piece`."""
        squared = torch.zeros(self._records, dtype=torch.float64, device=self._rows.device)
        return squared.index_add_(0, self._record, row_norms(self._rows).double().square_()).sqrt_()

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """See `Piece`."""
        out.index_add_(0, self._id, self._rows.to(out.dtype) * weights[self._record].unsqueeze(1))

    def gradients(self) -> Tensor:
        """See `Piece`."""
        written = self._rows.new_zeros(self._records, *self._table)
        return written.index_put_((self._record, self._id), self._rows)


def over_positions(inputs: Tensor, output_gradients: Tensor, kept_bytes: int) -> Piece:
    """The piece of a linear map that one record applies at several positions.

    Args:
        inputs: shape [batch, positions, d].
        output_gradients: shape [batch, positions, p].
        kept_bytes: how many bytes of written gradients may be kept for this parameter.
    """
    records, positions, d = inputs.shape
    p = output_gradients.shape[2]
    if positions == 1:
        return Outer(inputs[:, 0], output_gradients[:, 0])
    if _GRAM_COST * positions * (d + p) <= d * p:
        return Gram(inputs, output_gradients)

    def write(start: int, stop: int) -> Written:
        some = output_gradients[start:stop]
        return Written(torch.bmm(some.transpose(1, 2), inputs[start:stop].to(some.dtype)))

    return written_or_not(write, records, 4 * d * p, kept_bytes)


_GRAM_COST = 8
"""Time of a float64 Gram product relative to a float32 product of the same size, with what keeping gradients costs;
measured on one core for d = p = 768, see benchmarks."""


def written_or_not(write: Writer, records: int, bytes_each: int, kept_bytes: int) -> Piece:
    """Gradients written once and kept, if they fit into `kept_bytes`, else written twice in chunks."""
    if records * bytes_each <= kept_bytes:
        return write(0, records)
    return Rewritten(write, records, max(1, _CHUNK_BYTES // bytes_each))


def added(pieces: Sequence[Piece], kept_bytes: int) -> Piece:
    """One piece for all uses of a parameter, which must be added before the norm is taken.

    Args:
        pieces: one for each use, of the same parameter and batch.
        kept_bytes: how many bytes of written gradients may be kept for this parameter.
    """
    if len(pieces) == 1:
        return pieces[0]
    products = [piece for piece in pieces if isinstance(piece, Outer)]
    if len(products) == len(pieces):
        inputs, gradients = zip(*(piece.factors for piece in products), strict=True)
        return over_positions(torch.stack(inputs, 1), torch.stack(gradients, 1), kept_bytes)
    total = pieces[0].gradients()
    for piece in pieces[1:]:
        total = total + piece.gradients()
    return Written(total)


def _factor_norms(rows: Tensor) -> Tensor:
    """Norms [batch] of rows [batch, n], right to 1e-6 however small they are."""
    if rows.is_cuda or torch.compiler.is_compiling():  # no branch on a value there
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return norms.masked_fill_(norms > _LONGEST_FACTOR, torch.inf)
    norms = row_norms(rows)
    least, most = torch.aminmax(norms)  # not a number, if one of them is none
    if norms.dtype != torch.float64 and not float(least) > _SMALLEST_SURE_NORM:
        norms = row_norms(rows.double())
    return norms if float(most) <= _LONGEST_FACTOR else norms.masked_fill_(norms > _LONGEST_FACTOR, torch.inf)


def row_norms(rows: Tensor) -> Tensor:
    """Norms [batch] of rows [batch, ...], at least float32, from norms of short stretches: long float32 sums drift."""
    if rows.dim() != 2:
        rows = rows.flatten(1)
    dtype = torch.promote_types(rows.dtype, torch.float32)
    if rows.shape[1] <= _STRETCH:
        short: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
        return short
    stretches = [torch.linalg.vector_norm(part, dim=1, dtype=dtype) for part in rows.split(_STRETCH, dim=1)]
    long: Tensor = torch.linalg.vector_norm(torch.stack(stretches), dim=0)
    return long


def _in(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """The tensor in a type; torch takes a microsecond to find that it has it already."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)
