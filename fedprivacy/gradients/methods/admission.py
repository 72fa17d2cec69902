"""Which means computes a model's gradients, and how many records it takes at a time.

Several means compute the same gradients: a traced program, book-keeping, `vmap`, a loop. The first that applies is
tried on made-up records: it must agree with the loop, and a record's gradient must not depend on the rest of its batch.
Only then is it trusted with records.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.losses import InPlaceError, Loss, LossShapeError, UnsupportedModelError
from fedprivacy.gradients.methods.averaged import AveragedOverViews
from fedprivacy.gradients.methods.bookkeeping import BookKeeping
from fedprivacy.gradients.methods.obstacle import Obstacle, first_line, obstacle_of
from fedprivacy.gradients.methods.single_rows import SingleRows
from fedprivacy.gradients.methods.traced import Program
from fedprivacy.gradients.parts import WHOLE, sizes_up_to, with_small
from fedprivacy.gradients.selfcheck import (
    PROBES,
    DisagreementError,
    Loop,
    Means,
    PlaceError,
    Vectorised,
    check_against_loop,
    check_nearby,
)
from fedprivacy.gradients.threads import computing_with

log = logging.getLogger(__name__)

_IN_CACHE = 17 * 2**20
"""Bytes that a processor's cache holds: the size of part of a batch that is computed fastest."""

_MODERATE = 64 * 2**20
"""Bytes that a part of 8 to 32 records may take where one record alone fills the cache."""

_LEAST_PART = 8
"""Records that a part has at least, so that a layer's matrices are worth a processor's while."""

_MOST_ROWS = 256
"""Records that a part has at most: more are no faster, and the parts are tried before they are used."""

_COSTLY = 2**16
"""Bytes of a record that takes so long that few records are computed in small parts: measured, a row of 100 KB takes a
twentieth of what a turn takes besides, and one of a megabyte as long."""

_ON_GPU = 2**32
"""Bytes that a part may take on a GPU, which wants many records at a time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What computes gradients, and in which portions."""

    means: Means  # of records; of several views each, it averages
    sizes: tuple[int, ...]  # records that are computed at a time, the largest first
    kept_bytes: int  # of written gradients, for each parameter
    threads: int  # of torch's, with which it was proven; a large model's are all
    alone: bool = False  # whether each record is computed alone, so that it has no company that could show
    obstacle: Obstacle | None = None  # to faster means
    refused: tuple[str, ...] = ()  # faster means and why they were not used, a line each


def admitted(
    model: nn.Module,
    loss: Loss,
    probe: tuple[Tensor, Tensor],
    *,
    autocast: torch.dtype | None,
    views: int,
    max_memory: int | None,
) -> Admitted:
    """The first means that agrees with the loop on made-up records, `probe`, and keeps records apart.

    Its other arguments are those of the engine.

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
            means = _checked(kind, model, loss, probe, autocast)
            chosen = _in_portions(means, model, probe, views, max_memory, half=autocast is not None)
            return replace(chosen, obstacle=obstacle or chosen.obstacle, refused=(*refused, *chosen.refused))
        except (InPlaceError, LossShapeError):
            raise
        except Exception as reason:
            log.debug("Gradients by other means than %s: %s", kind.name, reason)
            refused.append(_refusal(kind.name, reason))
            if kind is not Program or isinstance(reason, PlaceError):  # else it is one for chains alone
                obstacle = obstacle or obstacle_of(reason)
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
) -> Means:
    """A means of one kind that agrees with the loop; raises if it does not, or if the kind does not apply."""
    loop, means = Loop(model, loss), kind(model, loss)
    check_against_loop(means, loop, probe)
    check_nearby(means, loop, probe)
    if autocast is None or kind is not BookKeeping:
        return means
    # Half precision would hide what a small nudge shows; the layers and their axes are the same without.
    half = BookKeeping(model, loss, autocast)
    check_against_loop(half, loop, probe, lax=True)
    return half


def _refusal(name: str, reason: Exception) -> str:
    """Why a means was not used, in a line."""
    return f"{name}: {first_line(reason).removeprefix(f'{name} ')}"


def still_apart(admitted: Admitted, model: nn.Module, probe: tuple[Tensor, Tensor], views: int) -> bool:
    """Whether what was admitted keeps records apart with another number of threads, too, in all of its sizes."""
    if admitted.alone:
        return True
    try:
        records, sizes = of_views(probe, views), admitted.sizes
        return sizes_that_agree(admitted.means, model, records, sizes, admitted.kept_bytes) == sizes
    except Exception:  # as `admitted` takes it
        return False


def of_views(probe: tuple[Tensor, Tensor], views: int) -> tuple[Tensor, Tensor]:
    """Made-up records as so many views of themselves, inputs [records, views, ...]; of one they are as they were."""
    inputs, targets = probe
    return probe if views == 1 else (inputs.unsqueeze(1).expand(-1, views, *inputs.shape[1:]).contiguous(), targets)


def _in_portions(
    means: Means, model: nn.Module, probe: tuple[Tensor, Tensor], views: int, max_memory: int | None, *, half: bool
) -> Admitted:
    """The means with the sizes of parts in which it keeps records apart; raises if there is none."""
    kept_bytes = (max_memory or _MODERATE) // 2
    pieces = means.pieces(*probe, PROBES * kept_bytes // _LEAST_PART)
    held = probe[0].nbytes + means.held_bytes + sum(sized.piece.kept_bytes for sized in pieces)
    each = (held // PROBES + 1) * views
    largest = _fastest(each, max_memory, on_gpu=probe[0].is_cuda)
    least = 2 * WHOLE if half else WHOLE  # half precision leaves more over
    small = each >= _COSTLY and not half and not probe[0].is_cuda
    threads = 1 if largest >= WHOLE and not probe[0].is_cuda else torch.get_num_threads()
    of_records = means if views == 1 else AveragedOverViews(means, views)
    if isinstance(means, Loop):
        return Admitted(of_records, (min(largest, WHOLE),), kept_bytes, threads, alone=True)
    tried = [largest]
    while tried[-1] < WHOLE and (max_memory is None or 2 * tried[-1] * each <= max_memory):
        tried.append(2 * tried[-1])  # so few records leave elements over
    wanted = [with_small(sizes) if small else sizes for sizes in (sizes_up_to(rows, least) for rows in tried)]
    try:
        chosen = Admitted(of_records, (1,), kept_bytes, threads)
        return _apart(chosen, model, of_views(probe, views), wanted, by_single_rows=not half)
    except DisagreementError:
        if largest >= WHOLE or views > 1:
            raise
    return Admitted(means, (1,), kept_bytes, threads, alone=True)  # too large for parts that are alike


def _apart(
    chosen: Admitted,
    model: nn.Module,
    records: tuple[Tensor, Tensor],
    wanted: Sequence[tuple[int, ...]],
    *,
    by_single_rows: bool,
) -> Admitted:
    """Return `chosen` with the first of the wanted sizes in which it keeps records apart.

    Where this processor's products show a record's place, they may take one row at a time.

    Raises:
        DisagreementError: there are no such sizes.
    """

    def sizes_of(means: Means) -> tuple[int, ...]:
        for sizes in wanted[:-1]:
            with suppress(DisagreementError):
                return sizes_that_agree(means, model, records, sizes, chosen.kept_bytes)
        return sizes_that_agree(means, model, records, wanted[-1], chosen.kept_bytes)

    with computing_with(chosen.threads):
        try:
            return replace(chosen, sizes=sizes_of(chosen.means))
        except PlaceError as reason:
            if not by_single_rows:
                raise
            means = SingleRows(chosen.means)
            refused = (_refusal(chosen.means.name, reason),)
            return replace(chosen, means=means, sizes=sizes_of(means), obstacle=obstacle_of(reason), refused=refused)


def _fastest(each: int, max_memory: int | None, *, on_gpu: bool) -> int:
    """How many records of `each` bytes to take at a time: a power of two, which most batches fill."""
    if on_gpu:
        fastest = _ON_GPU // each
    else:
        fastest = max(_IN_CACHE // each, min(_MODERATE // each, 4 * _LEAST_PART), _LEAST_PART)
    allowed = fastest if max_memory is None else max_memory // each
    most = max(1, min(fastest, allowed, _MOST_ROWS))
    return 1 << (most.bit_length() - 1)
