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
layers hide. So the products of a batch are also tried one by one (`fedprivacy.gradients.equal_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fedprivacy.gradients.equal_rows import EqualRowsStayEqual
from fedprivacy.gradients.parameters import restored
from fedprivacy.gradients.parts import WHOLE, plain, same_bits
from fedprivacy.gradients.selfcheck import DisagreementError, Method, PlaceError
from fedprivacy.gradients.tape import Sized
from fedprivacy.gradients.watch import NothingLeftOver

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
        with restored(model) as trained:
            make_hostile(trained, generator, wide=wide)
            inputs = hostile_rows(probe[0], sizes[0], generator, wide=wide)
            records = inputs, hostile_rows(probe[1], sizes[0], generator, wide=False)
            with _products_tried(sizes[0], seed == 0), NothingLeftOver(sizes[0]):
                whole = method.pieces(*records, kept_bytes)
            for rows, company in _arrangements(sizes[0], generator):
                moved = method.pieces(*_arranged(*records, rows, company), kept_bytes)
                if not _same(whole, rows[~company], moved, (~company).nonzero().squeeze(1)):
                    raise PlaceError(f"{method.name} computes a record by its place in the batch")
            agreeing = [s for s in agreeing if _agrees(method, records, whole, s, kept_bytes, first=seed == 0)]
            seen = seen or _alive(whole)
    if not seen:
        raise DisagreementError(f"{method.name} showed no gradient by which it could be judged")
    return tuple(agreeing)


def _agrees(
    method: Method, records: tuple[Tensor, Tensor], whole: list[Sized], size: int, kept_bytes: int, *, first: bool
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
                fewer = method.pieces(inputs, targets, kept_bytes)
        except Exception:  # a size that cannot be computed is none
            return False
        if not _same(whole, rows, fewer, torch.arange(size)):
            return False
    return True


def _products_tried(size: int, tried: bool) -> AbstractContextManager[object]:
    """Return the check of products. Enter it before other watches, or they would see what it computes."""
    return EqualRowsStayEqual(size) if tried else nullcontext()


def _same(batch: list[Sized], rows: Tensor, other_batch: list[Sized], other_rows: Tensor) -> bool:
    """Return whether records at `rows` of one batch have the same pieces, bit for bit, as those at `other_rows` of
    another.
    """
    if [one.part for one in batch] != [other.part for other in other_batch]:
        return False
    for one, other in zip(batch, other_batch, strict=True):
        mine, theirs = ([sized.norms, *sized.piece.sources] for sized in (one, other))
        if [t.shape[1:] for t in mine] != [t.shape[1:] for t in theirs]:  # of this size, it is kept in another form
            return False
        if not all(same_bits(a[rows], b[other_rows]) for a, b in zip(mine, theirs, strict=True)):
            return False
    return True


def _alive(whole: list[Sized]) -> bool:
    """Return whether at least half of the records have a gradient that is finite and not zero."""
    squared = torch.stack([one.norms.double().square() for one in whole]).sum(0)
    return bool(((squared > 0) & squared.isfinite()).double().mean() >= 0.5)


def _arrangements(size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the record to put at each place of a batch, and a mask of the places to fill with company, bool."""
    places = torch.arange(size)
    yield torch.randperm(size, generator=generator), torch.zeros(size, dtype=torch.bool)
    yield places.roll(1), torch.rand(size, generator=generator) < 0.5 * (size > 1)


def _arranged(inputs: Tensor, targets: Tensor, rows: Tensor, company: Tensor) -> tuple[Tensor, Tensor]:
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
