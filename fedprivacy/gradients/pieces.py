"""Pieces: per-record gradients of one parameter, each in the cheapest form; and their sums over a batch.

**A piece.** A layer's gradient for one record is a sum over positions t of outer products g_t a_t^T of output gradients
and inputs. Its norm, and its weighted sum over the records, can often be computed without keeping it for every record.
Each piece provides both, and can be written out when something else must be added to it first.

The clip is only as good as the agreement between the two: the norm must be that of the vector that is summed. So no
piece takes the norm of an expression that cancels and sums another that does not.

**The sums** stay within the mechanism's allowance, however many records there are. Adding many float32 vectors in
float32 is inexact: by up to the number of records times the rounding of one addition. Here float32 holds the sum of at
most `BLOCK` records, and float64 the sum of the blocks. The records of a block depend on places in the batch alone, so
that neighbouring batches differ in few blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from fedprivacy.gradients.products import align, on_gpu, summed_outer

Writer = Callable[[int, int], "Written"]
"""(start, stop) -> the written gradients of records start to stop."""

_SHORT = 2**14
"""Number of entries whose squares are added in float32 before float64 takes over."""

_SMALLEST_SURE_NORM = 1e-12
"""Smallest norm that is surely right: squares of entries below 1e-19 lose digits in float32, which larger norms do not
notice.
"""

_CHUNK_BYTES = 16 * 2**20
"""Number of bytes of written gradients in flight at a time: they fit into a processor's cache."""

STRETCH = 32
"""Maximum number of records that one matrix product adds, and that are written at a time: see `Sums`."""

BLOCK = 128
"""Number of records whose gradients are added in float32."""

_SMALL_ENTRIES = 4096
"""Largest number of entries of parameters that are added in float64 directly, which is cheaper than several small
products.
"""

_UNIT64 = 2.0**-52
"""Twice the relative rounding error of one operation in float64."""

_LONGEST_FACTOR = 2.0**64
"""Longest factor of a finite gradient: scaled down, the other factor would lose digits in float32."""


class Piece(ABC):
    """The gradients of one parameter (or of some of its rows) for every record of a batch.

    Attributes:
        sources: tensors from which the gradients are computed: only their row i determines record i's gradient.
    """

    sources: tuple[Tensor, ...]

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the piece takes beyond the layer's inputs and output gradients."""
        return 0

    @abstractmethod
    def norms(self) -> Tensor:
        """Return the Euclidean norm of each record's gradient, shape [batch], float32 or float64.

        It is never below (1 - 2e-5) times the norm of the vector that `add_weighted_sum` adds, and above it by more
        only where terms cancel: the clip relies on it.
        """

    @abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        """Add the sum over consecutive records of weight times gradient to `out`.

        Args:
            weights: weights of these records, shape [n], of the dtype of `out`, in which the sum is computed.
            out: tensor of shape [*parameter]; changed in place, and rounded once, as by one product.
            start: number of the first of these records.
        """

    @abstractmethod
    def gradients(self) -> Tensor:
        """Write out every record's gradient, shape [batch, *parameter]."""

    def average(self, weights: Tensor, kept_bytes: int) -> Piece:
        """Average the gradients of records that have several consecutive rows each, by weights [records, rows]."""
        return Written(_weigh_rows(self.gradients(), weights))


class Written(Piece):
    """Gradients written out and kept. The loss of their norms in float32 is far below any clipping norm."""

    def __init__(self, kept: Tensor, axes: tuple[int, ...] | None = None) -> None:
        """Take gradients [batch, ...], and the record's axis for each axis of the parameter; None: as they are."""
        self.sources, self._kept, self._axes = (kept,), kept, axes

    @property
    def kept_bytes(self) -> int:
        return self._kept.nbytes

    def norms(self) -> Tensor:
        return row_norms(self._kept)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        rows = _in(out.dtype, _flat(_some(self._kept, weights, start)).t())
        if self._axes is None:
            out.view(-1).addmv_(rows, weights)
        else:
            out.add_(torch.mv(rows, weights).view(self._kept.shape[1:]).permute(self._axes))

    def gradients(self) -> Tensor:
        return self._kept if self._axes is None else self._kept.permute(0, *(axis + 1 for axis in self._axes))


class Rewritten(Piece):
    """Gradients too large to keep: written twice, some records at a time, once for the norms and once for the sum.

    Both times in chunks of the same size: otherwise the second writing could differ from the first in its last bits.
    """

    def __init__(self, write: Writer, sources: tuple[Tensor, ...], chunk: int) -> None:
        """Take the function that writes, its sources, and the number of records to write at a time, a power of two."""
        self._write, self.sources, self._chunk = write, sources, chunk

    def norms(self) -> Tensor:
        return torch.cat([self._write(*chunk).norms() for chunk in self._chunks(0, len(self.sources[0]))])

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        some = torch.zeros_like(out)
        for first, last in self._chunks(start, start + len(weights)):
            self._write(first, last).add_weighted_sum(weights[first - start : last - start], some)
        out.add_(some)

    def gradients(self) -> Tensor:
        return self._write(0, len(self.sources[0])).gradients()

    def average(self, weights: Tensor, kept_bytes: int) -> Piece:
        rows = weights.shape[1]

        def write(start: int, stop: int) -> Written:
            return Written(_weigh_rows(self._write(start * rows, stop * rows).gradients(), weights[start:stop]))

        by_record = (source.unflatten(0, (-1, rows)) for source in self.sources)
        return Rewritten(write, (*by_record, weights), power_of_two(self._chunk // rows))

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for first in range(start, stop, self._chunk):
            yield first, min(first + self._chunk, stop)


class Outer(Piece):
    """One outer product for each record; its norm is the product of two norms, however small one of them is."""

    def __init__(self, inputs: Tensor, output_gradients: Tensor) -> None:
        """Take inputs [batch, d] and output gradients [batch, p]."""
        self.sources = inputs, output_gradients

    def norms(self) -> Tensor:
        inputs, gradients = self.sources
        return _factor_norms(inputs) * _factor_norms(gradients)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        inputs, gradients = self.sources
        scaled = _some(gradients, weights, start) * weights.unsqueeze(1)
        out.addmm_(_in(out.dtype, scaled.t()), _in(out.dtype, _some(inputs, weights, start)))

    def gradients(self) -> Tensor:
        inputs, gradients = self.sources
        return gradients.unsqueeze(2) * inputs.unsqueeze(1)

    def average(self, weights: Tensor, kept_bytes: int) -> Piece:
        inputs, gradients = (factor.unflatten(0, (-1, weights.shape[1])) for factor in self.sources)
        return over_positions(inputs, gradients * weights.to(gradients.dtype).unsqueeze(2), kept_bytes)


class Gram(Piece):
    """Outer products over few positions of a large parameter: the ghost norm (Goodfellow 2015; Li et al. 2022).

    The squared norm of sum_t g_t a_t^T is sum_st <a_s, a_t> <g_s, g_t>. In float32 that cancels to zero where the
    inputs share a large offset and the output gradients sum to almost zero, and a norm of zero is never clipped.
    Here norms and sums are float64, which holds the products of float32 numbers exactly. But a squared norm cancels
    twice as deep as the sum does, to zero even in float64. So the largest possible error of its computation is added:
    where terms cancel, the norm is too large, and never too small.
    """

    def __init__(self, inputs: Tensor, output_gradients: Tensor) -> None:
        """Take inputs [batch, positions, d] and output gradients [batch, positions, p]."""
        self.sources = inputs.double(), output_gradients.double()

    def norms(self) -> Tensor:
        inputs, grads = self.sources
        gram = torch.bmm(inputs, inputs.transpose(1, 2)).mul_(torch.bmm(grads, grads.transpose(1, 2)))
        squared = gram.sum((1, 2)).clamp_(min=0.0)
        terms = inputs.shape[2] + grads.shape[2] + inputs.shape[1] ** 2 + 4  # length of the longest chain of roundings
        uncancelled = (inputs.norm(dim=2) * grads.norm(dim=2)).sum(1).square_()
        squared.add_(uncancelled, alpha=terms * _UNIT64)
        one, other = inputs.square().sum((1, 2)), grads.square().sum((1, 2))
        return squared.masked_fill_(torch.maximum(one, other) > _LONGEST_FACTOR**2, torch.inf).sqrt_()

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        inputs, gradients = (_some(factor, weights, start) for factor in self.sources)
        out.add_(torch.mm((gradients * weights.view(-1, 1, 1)).flatten(0, 1).t(), inputs.flatten(0, 1)))

    def gradients(self) -> Tensor:
        inputs, gradients = self.sources
        return torch.bmm(gradients.transpose(1, 2), inputs)

    def average(self, weights: Tensor, kept_bytes: int) -> Piece:
        inputs, gradients = (factor.unflatten(0, (-1, weights.shape[1])) for factor in self.sources)
        weighted = gradients * weights[..., None, None]
        return over_positions(inputs.flatten(1, 2), weighted.flatten(1, 2), kept_bytes)


class TableRows(Piece):
    """Gradients of a table, such as an embedding's, of which each record touches few rows.

    Gradients of a row that a record touches more than once are added before the norm is taken.
    """

    def __init__(self, ids: Tensor, gradients: Tensor, table: torch.Size) -> None:
        """Take ids [batch, positions], the gradients of their rows [batch, positions, d] and the table's shape."""
        self._table = table
        keys = ids + torch.arange(len(ids), device=ids.device).unsqueeze(1) * table[0]
        touched, place = torch.unique(keys, return_inverse=True)
        rows = gradients.new_zeros(len(touched), table[1]).float()
        self._rows = _add_rows(rows, place.flatten(), gradients.flatten(0, 1).to(rows.dtype))
        self._record, self._id = touched // table[0], touched % table[0]
        self.sources = ids, gradients

    @property
    def kept_bytes(self) -> int:
        return self._rows.nbytes

    def norms(self) -> Tensor:
        squared = torch.zeros(len(self.sources[0]), dtype=torch.float64, device=self._rows.device)
        return _add_rows(squared, self._record, row_norms(self._rows).double().square_()).sqrt_()

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        bounds = torch.tensor([start, start + len(weights)], device=self._record.device)
        some = slice(*torch.searchsorted(self._record, bounds).tolist())
        scaled = self._rows[some].to(out.dtype) * weights[self._record[some] - start].unsqueeze(1)
        touched, place = torch.unique(self._id[some], return_inverse=True)
        out.index_add_(0, touched, _add_rows(out.new_zeros(len(touched), self._table[1]), place, scaled))

    def gradients(self) -> Tensor:
        written = self._rows.new_zeros(len(self.sources[0]), *self._table)
        return written.index_put_((self._record, self._id), self._rows)

    def average(self, weights: Tensor, kept_bytes: int) -> Piece:
        ids, gradients = (source.unflatten(0, (-1, weights.shape[1])) for source in self.sources)
        weighted = gradients * weights.to(gradients.dtype)[..., None, None]
        return TableRows(ids.flatten(1, 2), weighted.flatten(1, 2), self._table)


def _add_rows(rows: Tensor, places: Tensor, terms: Tensor) -> Tensor:
    """Add terms [n, ...] to the rows at `places` [n], in the order of the terms; a GPU's `index_add_` has none."""
    if on_gpu(rows):
        return rows.index_put_((places,), terms, accumulate=True)
    return rows.index_add_(0, places, terms)


def over_positions(inputs: Tensor, output_gradients: Tensor, kept_bytes: int) -> Piece:
    """Return the piece of a linear map, [batch, positions, d] to [batch, positions, p], that may keep `kept_bytes`
    bytes.
    """
    positions, d = inputs.shape[1:]
    p = output_gradients.shape[2]
    if positions == 1:
        return Outer(inputs[:, 0], output_gradients[:, 0])
    if _GRAM_COST * positions * (d + p) <= d * p:
        return Gram(inputs, output_gradients)

    def write(start: int, stop: int) -> Written:
        some = output_gradients[start:stop]
        return Written(summed_outer(some, inputs[start:stop].to(some.dtype)))

    return written_or_not(write, (output_gradients, inputs), 4 * d * p, kept_bytes)


_GRAM_COST = 8
"""Time of a float64 Gram product relative to a float32 product of the same size, including the cost of keeping
gradients; measured on one core for d = p = 768, see benchmarks.
"""


def written_or_not(write: Writer, sources: tuple[Tensor, ...], bytes_each: int, kept_bytes: int) -> Piece:
    """Write gradients of `bytes_each` once and keep them, if they fit into `kept_bytes`, else twice in chunks."""
    records = len(sources[0])
    if records * bytes_each <= kept_bytes:
        return write(0, records)
    return Rewritten(write, sources, min(power_of_two(_CHUNK_BYTES // bytes_each), STRETCH))


def power_of_two(largest: int) -> int:
    """Return the largest power of two up to `largest`, at least 1: it divides a part of a batch evenly."""
    return 1 << max(largest.bit_length() - 1, 0)


def join_pieces(pieces: Sequence[Piece], kept_bytes: int) -> Piece:
    """Join all uses of a parameter in a batch into one piece, because they must be added before the norm is taken."""
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, Outer) for piece in pieces):
        inputs, gradients = zip(*(piece.sources for piece in pieces), strict=True)
        return over_positions(torch.stack(inputs, 1), torch.stack(gradients, 1), kept_bytes)
    return Written(reduce(torch.add, (piece.gradients() for piece in pieces)))


def _weigh_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum rows [records * rows, ...] of each record by weights [records, rows]."""
    by_record: Tensor = rows.unflatten(0, (-1, weights.shape[1]))
    scales = weights.to(rows.dtype).view(*weights.shape, *[1] * (rows.dim() - 1))
    return (by_record * scales).sum(1)


def _factor_norms(rows: Tensor) -> Tensor:
    """Return norms [batch] of rows [batch, n], float64, accurate to 1e-6 however small they are.

    Each norm, and the precision of its computation, is a function of its own row alone.
    """
    if on_gpu(rows):  # no branch on a value there
        norms: Tensor = torch.linalg.vector_norm(align(rows), dim=1, dtype=torch.float64)
        return norms.masked_fill_(norms > _LONGEST_FACTOR, torch.inf)
    norms = row_norms(rows).double()
    least, most = torch.aminmax(norms)  # NaN if one of them is NaN
    if not float(least) > _SMALLEST_SURE_NORM:
        norms = torch.where(norms > _SMALLEST_SURE_NORM, norms, row_norms(rows.double()))
    return norms if float(most) <= _LONGEST_FACTOR else norms.masked_fill_(norms > _LONGEST_FACTOR, torch.inf)


def row_norms(rows: Tensor) -> Tensor:
    """Return norms [batch] of rows [batch, ...], at least float32, from norms of short stretches: long float32 sums
    drift.
    """
    rows = _flat(rows)
    rows, dtype = align(rows), torch.promote_types(rows.dtype, torch.float32)
    if rows.shape[1] <= _SHORT:
        short: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
        return short
    stretches = [torch.linalg.vector_norm(part, dim=1, dtype=dtype) for part in rows.split(_SHORT, dim=1)]
    long: Tensor = torch.linalg.vector_norm(torch.stack(stretches), dim=0)
    return long


def _flat(rows: Tensor) -> Tensor:
    """Flatten rows [batch, ...] to [batch, n]; a parameter without an axis has one number in each."""
    return rows.unsqueeze(1) if rows.dim() == 1 else rows if rows.dim() == 2 else rows.flatten(1)


def _some(rows: Tensor, weights: Tensor, start: int) -> Tensor:
    """Return the rows from `start` on that have weights. (The test for all rows saves torch two microseconds.)"""
    return rows if weights.shape[0] == rows.shape[0] else rows[start : start + weights.shape[0]]


def _in(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Convert the tensor to a type. (The test for the same type saves torch a microsecond.)"""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


class Part(NamedTuple):
    """A trained parameter by its place, or some of its rows: an attention's joint weight has three parts.

    The rows are `start` to before `stop`; None: all.
    """

    place: int
    start: int = 0
    stop: int | None = None

    def of(self, whole: Tensor) -> Tensor:
        """Return the part's rows of a tensor of the parameter's shape."""
        return whole if self.stop is None else whole[self.start : self.stop]

    def overlaps(self, other: Part) -> bool:
        """Return whether two parts of the same parameter share rows."""
        return self.stop is None or other.stop is None or (self.start < other.stop and other.start < self.stop)


@dataclass(frozen=True, slots=True)
class Sized:
    """A piece, its part, and the norms [batch] of its gradients."""

    part: Part
    piece: Piece
    norms: Tensor


class Sums:
    """The sums of a batch's clipped gradients, one for each parameter.

    Formal guarantee: let c_r be the records' scaled gradients as float32 numbers, each of norm at most C, and B the
    records whose places lie in one block. Then float32 rounding moves the sum over B by at most
    (`STRETCH` + 3) 2^-24 `BLOCK` C in Euclidean norm, whatever the order in which a matrix product adds (Higham 2002,
    section 3.1). float64 adds to this n^2 / `BLOCK` 2^-53 C for n records in all. The consequences are in
    `fedprivacy.mechanisms.gaussian_sum`.
    """

    def __init__(self, shapes: list[torch.Size], dtype: torch.dtype, device: torch.device, largest: int) -> None:
        """Start at zero: `dtype` is the type of a block's sum, `largest` the rows of a batch's largest part."""
        large = {place: shape for place, shape in enumerate(shapes) if shape.numel() > _SMALL_ENTRIES}
        self._blocks = {place: torch.empty(shape, dtype=dtype, device=device) for place, shape in large.items()}
        self._block_rows = min(BLOCK, STRETCH * largest)
        self._held, self._finished = 0, False  # rows of the present block; True after the first block
        self._total = torch.empty(sum(shape.numel() for shape in shapes), dtype=torch.float64, device=device)
        parts = self._total.split([shape.numel() for shape in shapes])
        self._totals = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        for place, total in enumerate(self._totals):
            if place not in large:  # a large parameter begins with its first block
                total.zero_()

    def add(self, pieces: Sequence[Sized], scales: Sequence[Tensor]) -> None:
        """Add a part of a batch: for each piece the records' factors [rows], float64, 0 for a row that is no record."""
        large = []
        for sized, scale in zip(pieces, scales, strict=True):
            block = self._blocks.get(sized.part.place)
            if block is None:
                sized.piece.add_weighted_sum(scale, sized.part.of(self._totals[sized.part.place]))
            else:
                large.append((sized.piece, scale.to(block.dtype), sized.part.of(block)))
        rows = len(scales[0])
        for start in range(0, rows, self._block_rows):
            stop = min(start + self._block_rows, rows)
            self._begin()
            for first in range(start, stop, STRETCH):
                for piece, weights, out in large:
                    piece.add_weighted_sum(weights[first : min(first + STRETCH, stop)], out, first)
            self._advance(stop - start)

    def skip(self, rows: int) -> None:
        """Skip a part of a batch in which no record counts, so that later records keep their places."""
        self._begin()
        self._advance(rows)

    def total(self) -> Tensor:
        """Return the sum, shape [d], float64."""
        if self._held or not self._finished:
            self._begin()
            self._finish()
        return self._total

    def _begin(self) -> None:
        if self._held == 0:
            for block in self._blocks.values():
                block.zero_()

    def _advance(self, rows: int) -> None:
        self._held += rows
        if self._held >= self._block_rows:
            self._finish()

    def _finish(self) -> None:
        for place, block in self._blocks.items():
            if self._finished:
                self._totals[place].add_(block)
            else:
                self._totals[place].copy_(block)
        self._held, self._finished = 0, True
