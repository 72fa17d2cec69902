"""Pieces: per-record gradients of one parameter, each in the cheapest form; and their sums over a batch.

**A piece.** A layer's gradient for one record is a sum over positions t of outer products g_t a_t^T of output gradients
and inputs. Its norm, and its weighted sum over the records, can often be computed without keeping it for every record.
Each piece provides both, and can be written out when something else must be added to it first.

The clip is only as good as the agreement between the two: the norm must be that of the vector that is summed. So no
piece takes the norm of an expression that cancels and sums another that does not.

**The sums** stay within the mechanism's allowance, however many records there are. Adding many float32 vectors in
float32 is inexact: by up to the number of records times the rounding of one addition. Here float32 holds the sum of at
most `BLOCK` records, and float64 the sum of the blocks. The records of a block depend on places in the batch alone, so
that neighbouring batches differ in few blocks. A GPU adds many stretches of a part at once, each in a lane of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import lru_cache, reduce
from itertools import groupby, islice
from typing import NamedTuple

import torch
from torch import Tensor

from fedprivacy.gradients.products import align, in_range, on_gpu, summed_outer, zero_on

Writer = Callable[..., "Written"]
"""(some records of each of a piece's sources) -> their written gradients."""

Keep = Callable[[Tensor], Tensor]
"""(rows [batch, ...]) -> the rows of the records that count, and zeros in the others' place."""

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

_LANE_BYTES = 2**30
"""Maximum number of bytes of the lanes, in which a GPU adds many stretches at once."""

_SMALL_ENTRIES = 4096
"""Largest number of entries of parameters that a processor adds in float64 directly, which is cheaper than several
small products.
"""

_UNIT64 = 2.0**-52
"""Twice the relative rounding error of one operation in float64."""

_LONGEST_FACTOR = 2.0**64
"""Longest factor of a finite gradient: scaled down, another factor would lose digits in float32."""


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
    def factors(self) -> tuple[Tensor, ...]:
        """Return one or two tensors [batch, ...]: the norm of a record's gradient is the product of its rows' norms.

        It is never below (1 - 2e-5) times the norm of the vector that `add_weighted_sum` adds, and above it by more
        only where terms cancel: the clip relies on it.
        """

    @abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        """Add the sum over consecutive records of weight times gradient to `out`.

        Args:
            weights: weights of these records, shape [n], of the dtype of `out`, in which the sum is computed; or
                [lanes, n], for one sum in each lane.
            out: tensor of shape [*parameter], or [lanes, *parameter]; changed in place, and rounded once, as by one
                product.
            start: number of the first of these records.
        """

    @abstractmethod
    def gradients(self) -> Tensor:
        """Write out every record's gradient, shape [batch, *parameter]."""

    @abstractmethod
    def kept_by(self, keep: Keep) -> Piece:
        """Return the piece of the gradients that are kept, and zeros in the others' place."""

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

    def factors(self) -> tuple[Tensor, ...]:
        return (self._kept,)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        rows = _in(out.dtype, _some(_flat(self._kept), weights, start))
        if self._axes is not None:
            summed = torch.matmul(weights.unsqueeze(-2), rows).view(*weights.shape[:-1], *self._kept.shape[1:])
            lanes = weights.dim() - 1
            out.add_(summed.permute(*range(lanes), *(lanes + axis for axis in self._axes)))
        elif weights.dim() == 1:
            out.view(-1).addmv_(rows.t(), weights)
        else:
            out.view(len(out), 1, -1).baddbmm_(weights.unsqueeze(1), rows)

    def gradients(self) -> Tensor:
        return self._kept if self._axes is None else self._kept.permute(0, *(axis + 1 for axis in self._axes))

    def kept_by(self, keep: Keep) -> Piece:
        return Written(keep(self._kept), self._axes)


class Rewritten(Piece):
    """Gradients too large to keep: written twice, some records at a time, once for the norms and once for the sum.

    Both times in chunks of the same size: otherwise the second writing could differ from the first in its last bits.
    """

    def __init__(self, write: Writer, sources: tuple[Tensor, ...], chunk: int) -> None:
        """Take the function that writes, its sources, and the number of records to write at a time, a power of two."""
        self._write, self.sources, self._chunk = write, sources, chunk

    def factors(self) -> tuple[Tensor, ...]:
        chunks = (self._written(*chunk).factors()[0] for chunk in self._chunks(0, len(self.sources[0])))
        return (torch.cat([row_norms(rows) for rows in chunks]),)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        if weights.dim() == 2:
            for lane, (own, into) in enumerate(zip(weights, out, strict=True)):
                self.add_weighted_sum(own, into, start + lane * len(own))
            return
        some = torch.zeros_like(out)
        for first, last in self._chunks(start, start + len(weights)):
            self._written(first, last).add_weighted_sum(weights[first - start : last - start], some)
        out.add_(some)

    def gradients(self) -> Tensor:
        return self._write(*self.sources).gradients()

    def kept_by(self, keep: Keep) -> Piece:
        return Rewritten(self._write, tuple(map(keep, self.sources)), self._chunk)

    def average(self, weights: Tensor, kept_bytes: int) -> Piece:
        rows = weights.shape[1]

        def write(*some: Tensor) -> Written:
            *by_record, weights = some
            return Written(
                _weigh_rows(self._write(*(source.flatten(0, 1) for source in by_record)).gradients(), weights)
            )

        by_record = (source.unflatten(0, (-1, rows)) for source in self.sources)
        return Rewritten(write, (*by_record, weights), power_of_two(self._chunk // rows))

    def _written(self, start: int, stop: int) -> Written:
        return self._write(*(source[start:stop] for source in self.sources))

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for first in range(start, stop, self._chunk):
            yield first, min(first + self._chunk, stop)


class Outer(Piece):
    """One outer product for each record; its norm is the product of two norms, however small one of them is."""

    def __init__(self, inputs: Tensor, output_gradients: Tensor) -> None:
        """Take inputs [batch, d] and output gradients [batch, p]."""
        self.sources = inputs, output_gradients

    def factors(self) -> tuple[Tensor, ...]:
        return self.sources

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        inputs, gradients = (_some(factor, weights, start) for factor in self.sources)
        scaled = _in(out.dtype, (gradients * weights.unsqueeze(-1)).mT)
        add = out.addmm_ if weights.dim() == 1 else out.baddbmm_
        add(scaled, _in(out.dtype, inputs))

    def gradients(self) -> Tensor:
        inputs, gradients = self.sources
        return gradients.unsqueeze(2) * inputs.unsqueeze(1)

    def kept_by(self, keep: Keep) -> Piece:
        return Outer(*map(keep, self.sources))

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

    def factors(self) -> tuple[Tensor, ...]:
        inputs, grads = self.sources
        gram = torch.bmm(inputs, inputs.transpose(1, 2)).mul_(torch.bmm(grads, grads.transpose(1, 2)))
        squared = gram.sum((1, 2)).clamp_(min=0.0)
        terms = inputs.shape[2] + grads.shape[2] + inputs.shape[1] ** 2 + 4  # length of the longest chain of roundings
        uncancelled = (inputs.norm(dim=2) * grads.norm(dim=2)).sum(1).square_()
        squared.add_(uncancelled, alpha=terms * _UNIT64)
        one, other = inputs.square().sum((1, 2)), grads.square().sum((1, 2))
        return (squared.masked_fill_(torch.maximum(one, other) > _LONGEST_FACTOR**2, torch.inf).sqrt_(),)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        inputs, gradients = (_some(factor, weights, start) for factor in self.sources)
        scaled = (gradients * weights[..., None, None]).flatten(-3, -2)
        out.add_(torch.matmul(scaled.mT, inputs.flatten(-3, -2)))

    def gradients(self) -> Tensor:
        inputs, gradients = self.sources
        return torch.bmm(gradients.transpose(1, 2), inputs)

    def kept_by(self, keep: Keep) -> Piece:
        return Gram(*map(keep, self.sources))

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
        self.sources, self._table = (ids, gradients), table
        touched, order = ids.sort(dim=1, stable=True)
        place = torch.zeros_like(ids)  # the number of a row among those that its record touches
        torch.cumsum(touched[:, 1:] != touched[:, :-1], 1, out=place[:, 1:])
        record = torch.arange(len(ids), device=ids.device).unsqueeze(1)
        with in_range():
            self._ids = torch.zeros_like(ids).scatter_(1, place, touched)  # zeros at the end, with gradients of zero
            terms = gradients[record, order].to(torch.promote_types(gradients.dtype, torch.float32))
            self._rows = torch.zeros_like(terms).index_put_((record, place), terms, accumulate=True)

    @property
    def kept_bytes(self) -> int:
        return self._rows.nbytes

    def factors(self) -> tuple[Tensor, ...]:
        return (self._rows,)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, start: int = 0) -> None:
        scaled = _some(self._rows, weights, start).to(out.dtype) * weights[..., None, None]
        ids = _some(self._ids, weights, start)
        if weights.dim() == 2:
            lane = torch.arange(len(out), device=out.device)[:, None, None]
            out.index_put_((lane, ids), scaled, accumulate=True)
        elif on_gpu(out):
            out.index_put_((ids,), scaled, accumulate=True)
        else:
            touched, place = torch.unique(ids, return_inverse=True)
            summed = out.new_zeros(len(touched), self._table[1])
            out.index_add_(0, touched, summed.index_add_(0, place.flatten(), scaled.flatten(0, 1)))

    def gradients(self) -> Tensor:
        written = self._rows.new_zeros(len(self._ids), *self._table)
        record = torch.arange(len(self._ids), device=self._ids.device).unsqueeze(1)
        return written.index_put_((record, self._ids), self._rows, accumulate=True)

    def kept_by(self, keep: Keep) -> Piece:
        kept = copy(self)
        kept._rows = keep(self._rows)
        return kept

    def average(self, weights: Tensor, kept_bytes: int) -> Piece:
        ids, gradients = (source.unflatten(0, (-1, weights.shape[1])) for source in self.sources)
        weighted = gradients * weights.to(gradients.dtype)[..., None, None]
        return TableRows(ids.flatten(1, 2), weighted.flatten(1, 2), self._table)


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

    def write(gradients: Tensor, inputs: Tensor) -> Written:
        return Written(summed_outer(gradients, inputs.to(gradients.dtype)))

    return written_or_not(write, (output_gradients, inputs), 4 * d * p, kept_bytes)


_GRAM_COST = 8
"""Time of a float64 Gram product relative to a float32 product of the same size, including the cost of keeping
gradients; measured on one core for d = p = 768, see benchmarks.
"""


def written_or_not(write: Writer, sources: tuple[Tensor, ...], bytes_each: int, kept_bytes: int) -> Piece:
    """Write gradients of `bytes_each` once and keep them, if they fit into `kept_bytes`, else twice in chunks."""
    records = len(sources[0])
    if records * bytes_each <= kept_bytes:
        return write(*sources)
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


def squared_norms(pieces: Sequence[Piece], groups: Sequence[int], number: int) -> Tensor:
    """Sum the squared norms of the records' gradients by group.

    Args:
        pieces: at least one; all of the same records.
        groups: group of each piece, from 0.
        number: number of groups; one without a piece has norms of zero.

    Returns:
        Shape [number, batch], float64. Each is a function of its own record's rows alone. It is infinite or NaN where a
        factor is longer than `_LONGEST_FACTOR`, or not finite.
    """
    factors = [piece.factors() for piece in pieces]
    rows = {id(one): one for own in factors for one in own}  # a bias has a factor of its weight: it is read once
    squared = dict(zip(rows, _norms(list(rows.values())).square_().unbind(), strict=True))
    terms = [squared[id(own[0])] for own in factors]
    pairs = [place for place, own in enumerate(factors) if len(own) > 1]
    if pairs:
        others = [squared[id(factors[place][1])] for place in pairs]
        for place, product in zip(pairs, torch._foreach_mul([terms[place] for place in pairs], others), strict=True):
            terms[place] = product
    if number == 1:
        return add_by_halves([terms])[0].unsqueeze(0)
    by_group = [[term for term, own in zip(terms, groups, strict=True) if own == group] for group in range(number)]
    return torch.stack(add_by_halves([own or [torch.zeros_like(terms[0])] for own in by_group]))


def add_by_halves(groups: list[list[Tensor]]) -> list[Tensor]:
    """Add the tensors of each group, all of one shape, by few operations that treat all elements alike."""
    while any(len(group) > 1 for group in groups):
        first = [term for group in groups for term in group[: len(group) // 2]]
        last = [term for group in groups for term in group[-(-len(group) // 2) :]]
        sums = iter(torch._foreach_add(first, last))
        groups = [[*islice(sums, len(own) // 2), *own[len(own) // 2 : -(-len(own) // 2)]] for own in groups]
    return [group[0] for group in groups]


def _norms(factors: Sequence[Tensor]) -> Tensor:
    """Return norms of rows, shape [factors, batch], float64, accurate to 2e-5 however small they are.

    Each norm, and the precision of its computation, is a function of its own row alone.
    """
    if on_gpu(factors[0]):  # no branch on a value there
        rows = (align(_flat(factor)) for factor in factors)
        norms = torch.stack([torch.linalg.vector_norm(own, dim=1, dtype=torch.float64) for own in rows])
        return norms.masked_fill_(norms > _LONGEST_FACTOR, torch.inf)
    norms = torch.stack([row_norms(factor) for factor in factors]).double()
    least, most = torch.aminmax(norms)  # NaN if one of them is NaN
    if not float(least) > _SMALLEST_SURE_NORM:
        for factor, own in zip(factors, norms, strict=True):
            if not float(own.min()) > _SMALLEST_SURE_NORM:
                own.copy_(torch.where(own > _SMALLEST_SURE_NORM, own, row_norms(factor.double())))
    return norms if float(most) <= _LONGEST_FACTOR else norms.masked_fill_(norms > _LONGEST_FACTOR, torch.inf)


def row_norms(rows: Tensor) -> Tensor:
    """Return norms [batch] of rows [batch, ...], at least float32, from norms of short stretches: long float32 sums
    drift.
    """
    rows = align(_flat(rows))
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
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
    """Return the rows from `start` on that have weights, [*weights.shape, ...]. (The tests save torch microseconds.)"""
    count = weights.numel()
    if count != rows.shape[0]:
        rows = rows[start : start + count]
    return rows if weights.dim() == 1 else rows.unflatten(0, weights.shape)


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


class Placed(NamedTuple):
    """A piece, and the part of a parameter whose gradients it has."""

    part: Part
    piece: Piece


def keep_counted(pieces: list[Placed], counted: Tensor) -> None:
    """Put zeros into the gradients of records that do not count, mask [batch]: what is NaN would spoil every sum.

    The pieces are replaced in the list, one by one, so that one piece at a time is in memory twice.
    """
    nothing = zero_on(counted.device)

    @lru_cache(maxsize=2)  # a weight and its bias share the gradients of the layer's output
    def keep(rows: Tensor) -> Tensor:
        return torch.where(counted.view(-1, *[1] * (rows.dim() - 1)), rows, nothing)

    for place, (part, piece) in enumerate(pieces):
        pieces[place] = Placed(part, piece.kept_by(keep))


class Sums:
    """The sums of a batch's clipped gradients, one for each parameter.

    Formal guarantee: let c_r be the records' scaled gradients as float32 numbers, each of norm at most C, and B the
    records whose places lie in one block: `BLOCK` of them, or on a GPU the `STRETCH` of a lane. Then float32 rounding
    moves the sum over B by at most (`STRETCH` + 3) 2^-24 |B| C in Euclidean norm, whatever the order in which a matrix
    product adds (Higham 2002, section 3.1). float64 adds to this n^2 / |B| 2^-53 C for n records in all. The
    consequences are in `fedprivacy.mechanisms.gaussian_sum`.
    """

    def __init__(self, shapes: list[torch.Size], dtype: torch.dtype, device: torch.device, largest: int) -> None:
        """Start at zero: `dtype` is the type of a block's sum, `largest` the rows of a batch's largest part."""
        sizes = [shape.numel() for shape in shapes]
        self._total = torch.empty(sum(sizes), dtype=torch.float64, device=device)
        self._totals = [part.view(shape) for part, shape in zip(self._total.split(sizes), shapes, strict=True)]
        gpu, self._dtype = on_gpu(self._total), dtype
        most = _LANE_BYTES // max(self._total.numel() * dtype.itemsize, 1)
        self._lanes = max(min(largest // STRETCH, most), 1) if gpu and largest % STRETCH == 0 else 1
        self._block_rows = STRETCH if gpu else min(BLOCK, STRETCH * largest)
        self._held, self._finished = 0, False  # rows of the present block; True after the first block
        self._blocks: dict[int, Tensor] = {}  # of each large parameter, [lanes, *parameter]
        self._runs: list[tuple[Tensor, Tensor]] = []  # blocks [lanes, n] and totals [n] of large parameters in a row
        for large, run in groupby(range(len(shapes)), lambda place: gpu or sizes[place] > _SMALL_ENTRIES):
            places = list(run)
            first = sum(sizes[: places[0]])
            total = self._total[first : first + sum(sizes[place] for place in places)]
            if not large:  # a large parameter begins with its first block
                total.zero_()
                continue
            self._runs.append((torch.empty(self._lanes, total.numel(), dtype=dtype, device=device), total))
            split = self._runs[-1][0].split([sizes[place] for place in places], 1)
            self._blocks |= {place: own.view(-1, *shapes[place]) for place, own in zip(places, split, strict=True)}

    def add(self, pieces: Sequence[Placed], scales: Tensor, groups: Sequence[int]) -> None:
        """Add a part of a batch.

        Args:
            pieces: the pieces.
            scales: factor of each record by group, shape [groups, rows], float64; 0 for a row that is no record.
            groups: group of each parameter.
        """
        exact, rounded = scales.unbind(), (scales.to(self._dtype) if self._blocks else scales).unbind()
        large = []
        for part, piece in pieces:
            block, group = self._blocks.get(part.place), groups[part.place]
            if block is None:
                piece.add_weighted_sum(exact[group], part.of(self._totals[part.place]))
            else:
                own = block if part.stop is None else block[:, part.start : part.stop]
                large.append((piece, rounded[group], own[0] if self._lanes == 1 else own))
        rows, turn = scales.shape[1], self._lanes * STRETCH
        for start in range(0, rows, turn):
            stop = min(start + turn, rows)
            self._begin()
            for piece, weights, out in large:
                some = weights[start:stop]
                if self._lanes == 1:
                    piece.add_weighted_sum(some, out, start)
                else:
                    some = some.view(-1, STRETCH)
                    piece.add_weighted_sum(some, out[: len(some)], start)
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
            for block, _ in self._runs:
                block.zero_()

    def _advance(self, rows: int) -> None:
        self._held += rows
        if self._held >= self._block_rows:
            self._finish()

    def _finish(self) -> None:
        for block, total in self._runs:
            if self._finished:
                total.add_(block[0] if self._lanes == 1 else block.sum(0, dtype=torch.float64))
            elif self._lanes == 1:
                total.copy_(block[0])
            else:
                torch.sum(block, 0, dtype=torch.float64, out=total)
        self._held, self._finished = 0, True
