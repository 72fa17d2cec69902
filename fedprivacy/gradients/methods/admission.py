"""Admission: the choice of the method that computes a model's gradients, and of the number of records at a time.

Several methods compute the same gradients: a traced program, book-keeping, `vmap`, a loop. The first that applies is
tried on made-up records: it must agree with the loop, and a record's gradient must not depend on the rest of its batch.
Only then is it used on records.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.layout import Layout
from fedprivacy.gradients.losses import InPlaceError, Loss, LossShapeError, UnsupportedModelError
from fedprivacy.gradients.methods.averaged import averaged
from fedprivacy.gradients.methods.bookkeeping import BookKeeping
from fedprivacy.gradients.methods.obstacle import Obstacle, first_line, obstacle_of
from fedprivacy.gradients.methods.single_rows import SingleRows
from fedprivacy.gradients.methods.traced import Program
from fedprivacy.gradients.parts import WHOLE, sizes_up_to, with_small
from fedprivacy.gradients.selfcheck import (
    PROBES,
    DisagreementError,
    Loop,
    Method,
    PlaceError,
    Vectorised,
    check_half,
    checked,
)
from fedprivacy.gradients.threads import computing_with

log = logging.getLogger(__name__)

_IN_CACHE = 17 * 2**20
"""Number of bytes that a processor's cache holds: the fastest size of a part of a batch."""

_MODERATE = 64 * 2**20
"""Maximum number of bytes of a part of 8 to 32 records where one record alone fills the cache."""

_LEAST_PART = 8
"""Minimum number of records in a part, so that a layer's matrices are large enough for a processor."""

_MOST_ROWS = 256
"""Maximum number of records in a part: more are no faster, and every part is tried before it is used."""

_COSTLY = 2**16
"""Number of bytes of a record from which small parts for few records pay: measured, a row of 100 KB takes a twentieth
of a turn's fixed time, and one of a megabyte as long as that.
"""

_ON_GPU = 2**32
"""Maximum number of bytes of a part on a GPU, which needs many records at a time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The admitted method, and the sizes of the portions in which it computes."""

    method: Method  # method for records; it averages if they have several rows
    sizes: tuple[int, ...]  # numbers of records that are computed at a time, the largest first
    kept_bytes: int  # bytes of written gradients, for each parameter
    threads: int  # number of torch's threads with which it was proven; all for a large model
    alone: bool = False  # True if each record is computed alone, so that it has no company
    obstacle: Obstacle | None = None  # reason why no faster method is used
    refused: tuple[str, ...] = ()  # faster methods and why they were not used, a line each


def admitted(
    model: nn.Module,
    loss: Loss,
    probe: tuple[Tensor, Tensor],
    *,
    autocast: torch.dtype | None,
    layout: Layout,
    max_memory: int | None,
) -> Admitted:
    """Return the first method that agrees with the loop on made-up records, `probe`, and keeps records apart.

    The other arguments are those of the engine.

    Raises:
        InPlaceError: a layer's input is changed in place.
        LossShapeError: the loss is not one value for each record.
        UnsupportedModelError: not even the loop agrees with itself.
    """
    obstacle, refused = None, list[str]()
    for kind in (Program, BookKeeping, Vectorised, Loop):  # the fastest first
        if autocast and kind is Program:
            continue
        try:
            method = _checked(kind, model, loss, probe, autocast)
            chosen = _in_portions(method, model, probe, layout, max_memory, half=autocast is not None)
            return replace(chosen, obstacle=obstacle or chosen.obstacle, refused=(*refused, *chosen.refused))
        except (InPlaceError, LossShapeError):
            raise
        except Exception as reason:
            log.debug("Gradients are not computed by %s: %s", kind.name, reason)
            refused.append(_refusal(kind.name, reason))
            if kind is not Program or isinstance(reason, PlaceError):  # other reasons concern chains alone
                obstacle = obstacle or obstacle_of(reason, on_gpu=probe[0].is_cuda)
    raise UnsupportedModelError(
        "The model computes something else each time: it draws random numbers, or keeps something of a batch for "
        "the next. Leave dropout out, and compute everything anew in every forward pass."
    )


def _checked(
    kind: type[Program | BookKeeping | Vectorised | Loop],
    model: nn.Module,
    loss: Loss,
    probe: tuple[Tensor, Tensor],
    autocast: torch.dtype | None,
) -> Method:
    """Make a method of one kind and check it against the loop; raise if they disagree or the kind does not apply."""
    method = checked(kind, model, loss, probe)
    if autocast is None or kind is not BookKeeping:
        return method
    # Half precision would hide what a small nudge shows; the layers and their axes are the same without.
    half = BookKeeping(model, loss, autocast)
    check_half(half, model, loss, probe)
    return half


def _refusal(name: str, reason: Exception) -> str:
    """Explain in one line why a method was not used."""
    return f"{name}: {first_line(reason).removeprefix(f'{name} ')}"


def still_apart(admitted: Admitted, model: nn.Module, records: tuple[Tensor, Tensor]) -> bool:
    """Return whether the admitted method keeps records apart with another number of threads, too, in all sizes."""
    if admitted.alone:
        return True
    try:
        sizes = admitted.sizes
        return sizes_that_agree(admitted.method, model, records, sizes, admitted.kept_bytes) == sizes
    except Exception:  # as `admitted` takes it
        return False


def _in_portions(
    method: Method,
    model: nn.Module,
    probe: tuple[Tensor, Tensor],
    layout: Layout,
    max_memory: int | None,
    *,
    half: bool,
) -> Admitted:
    """Find the sizes of parts in which the method keeps records apart; raise if there is none."""
    on_gpu = probe[0].is_cuda
    kept_bytes = (max_memory or (_ON_GPU if on_gpu else _MODERATE)) // 2
    pieces = method.pieces(*probe, PROBES * kept_bytes // _LEAST_PART)
    held = probe[0].nbytes + method.held_bytes + sum(sized.piece.kept_bytes for sized in pieces)
    each = (held // PROBES + 1) * layout.each
    largest = _fastest(each, max_memory, on_gpu=on_gpu)
    least = 2 * WHOLE if half else WHOLE  # half precision needs larger multiples
    small = each >= _COSTLY and not half and not on_gpu
    threads = 1 if largest >= WHOLE and not on_gpu else torch.get_num_threads()
    of_records = averaged(method, layout)
    if isinstance(method, Loop):
        return Admitted(of_records, (min(largest, WHOLE),), kept_bytes, threads, alone=True)
    tried = [largest]
    while tried[-1] < WHOLE and (max_memory is None or 2 * tried[-1] * each <= max_memory):
        tried.append(2 * tried[-1])  # smaller parts leave elements over
    wanted = [with_small(sizes) if small else sizes for sizes in (sizes_up_to(rows, least) for rows in tried)]
    try:
        chosen = Admitted(of_records, (1,), kept_bytes, threads)
        return _apart(chosen, model, layout.of_made_up(probe), wanted, by_single_rows=not half)
    except DisagreementError:
        if largest >= WHOLE or layout.each > 1:
            raise
    return Admitted(method, (1,), kept_bytes, threads, alone=True)  # too large for parts that are alike


def _apart(
    chosen: Admitted,
    model: nn.Module,
    records: tuple[Tensor, Tensor],
    wanted: Sequence[tuple[int, ...]],
    *,
    by_single_rows: bool,
) -> Admitted:
    """Return `chosen` with the first of the wanted sizes in which it keeps records apart.

    If this processor's products depend on a record's place, they may take one row at a time.

    Raises:
        DisagreementError: there are no such sizes.
    """

    def sizes_of(method: Method) -> tuple[int, ...]:
        for sizes in wanted[:-1]:
            with suppress(DisagreementError):
                return sizes_that_agree(method, model, records, sizes, chosen.kept_bytes)
        return sizes_that_agree(method, model, records, wanted[-1], chosen.kept_bytes)

    with computing_with(chosen.threads):
        try:
            return replace(chosen, sizes=sizes_of(chosen.method))
        except PlaceError as reason:
            if not by_single_rows:
                raise
            method = SingleRows(chosen.method)
            refused = (_refusal(chosen.method.name, reason),)
            obstacle = obstacle_of(reason, on_gpu=records[0].is_cuda)
            return replace(chosen, method=method, sizes=sizes_of(method), obstacle=obstacle, refused=refused)


def _fastest(record_bytes: int, max_memory: int | None, *, on_gpu: bool) -> int:
    """Return the number of records of `record_bytes` to take at a time: a power of two, which most batches fill."""
    if on_gpu:
        fastest = _ON_GPU // record_bytes
    else:
        fastest = max(_IN_CACHE // record_bytes, min(_MODERATE // record_bytes, 4 * _LEAST_PART), _LEAST_PART)
    allowed = fastest if max_memory is None else max_memory // record_bytes
    most = max(1, min(fastest, allowed, _MOST_ROWS))
    return 1 << (most.bit_length() - 1)
