"""Which means computes a model's gradients, and how many records it takes at a time.

Several means compute the same gradients: a traced program, book-keeping, `vmap`, a loop. The first that applies is
tried on made-up records: it must agree with the loop, and a record's gradient must not depend on the rest of its batch.
Only then is it trusted with records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.losses import InPlaceError, Loss, LossShapeError, UnsupportedModelError
from fedprivacy.gradients.methods.averaged import AveragedOverViews
from fedprivacy.gradients.methods.bookkeeping import BookKeeping
from fedprivacy.gradients.methods.obstacle import Obstacle, obstacle_of
from fedprivacy.gradients.methods.traced import Program
from fedprivacy.gradients.parts import WHOLE, sizes_up_to, with_small
from fedprivacy.gradients.selfcheck import (
    PROBES,
    DisagreementError,
    Loop,
    Means,
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
    loop = Loop(model, loss)
    candidates: list[Callable[[nn.Module, Loss], Means]] = [partial(BookKeeping, autocast=autocast), Vectorised, Loop]
    if autocast is None:
        candidates.insert(0, Program)
    obstacle = None
    for build in candidates:  # the fastest first
        try:
            means = build(model, loss)
            check_against_loop(means, loop, probe, lax=autocast is not None)
            exact = means
            if autocast and isinstance(means, BookKeeping):
                # Half precision would hide what a small nudge shows; the layers and their axes are the same without.
                exact = BookKeeping(model, loss)
                check_against_loop(exact, loop, probe)
            check_nearby(exact, loop, probe)
            least = WHOLE if autocast is None else 2 * WHOLE
            chosen = _in_portions(means, model, probe, views, max_memory, least=least)
            return replace(chosen, obstacle=obstacle)
        except (InPlaceError, LossShapeError):
            raise
        except Exception as reason:
            log.debug("Gradients by other means: %s", reason)
            if build is not Program:  # which is for chains alone
                obstacle = obstacle or obstacle_of(reason)
    raise UnsupportedModelError(
        "The model computes something else each time: it draws random numbers, or keeps something of a batch for "
        "the next. Leave dropout out, and compute everything anew in every forward pass."
    )


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
    means: Means, model: nn.Module, probe: tuple[Tensor, Tensor], views: int, max_memory: int | None, *, least: int
) -> Admitted:
    """The means with the sizes of parts, down to `least`, in which it keeps records apart; raises if there is none."""
    kept_bytes = (max_memory or _MODERATE) // 2
    pieces = means.pieces(*probe, PROBES * kept_bytes // _LEAST_PART)
    held = probe[0].nbytes + means.held_bytes + sum(sized.piece.kept_bytes for sized in pieces)
    each = (held // PROBES + 1) * views
    largest = _fastest(each, max_memory, on_gpu=probe[0].is_cuda)
    small = each >= _COSTLY and least == WHOLE and not probe[0].is_cuda  # half precision leaves more over
    threads = 1 if largest >= WHOLE and not probe[0].is_cuda else torch.get_num_threads()
    of_records = means if views == 1 else AveragedOverViews(means, views)
    if isinstance(means, Loop):
        return Admitted(of_records, (min(largest, WHOLE),), kept_bytes, threads, alone=True)
    tried = [largest]
    while tried[-1] < WHOLE and (max_memory is None or 2 * tried[-1] * each <= max_memory):
        tried.append(2 * tried[-1])  # so few records leave elements over
    records = of_views(probe, views)
    for rows in tried:
        wanted = sizes_up_to(rows, least)
        sizes = with_small(wanted) if small else wanted
        try:
            with computing_with(threads):
                agreeing = sizes_that_agree(of_records, model, records, sizes, kept_bytes)
            return Admitted(of_records, agreeing, kept_bytes, threads)
        except DisagreementError as reason:
            disagreement = reason
    if largest >= WHOLE or views > 1:
        raise disagreement
    return Admitted(means, (1,), kept_bytes, threads, alone=True)  # too large for parts that are alike


def _fastest(each: int, max_memory: int | None, *, on_gpu: bool) -> int:
    """How many records of `each` bytes to take at a time: a power of two, which most batches fill."""
    if on_gpu:
        fastest = _ON_GPU // each
    else:
        fastest = max(_IN_CACHE // each, min(_MODERATE // each, 4 * _LEAST_PART), _LEAST_PART)
    allowed = fastest if max_memory is None else max_memory // each
    most = max(1, min(fastest, allowed, _MOST_ROWS))
    return 1 << (most.bit_length() - 1)
