"""Which means computes a model's gradients, and how many records it takes at a time.

Several means compute the same gradients: a traced program, book-keeping, `vmap`, a loop. The first that applies is
tried on three made-up records against the loop; only if it agrees is it trusted with records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedprivacy.gradients.bookkeeping import BookKeeping
from fedprivacy.gradients.errors import InPlaceError, LossShapeError, UnsupportedModelError
from fedprivacy.gradients.fallbacks import Loop, Vectorised
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.parameters import trainable_parameters
from fedprivacy.gradients.program import Program
from fedprivacy.gradients.selfcheck import PROBES, Means, check_against_loop, check_nearby

log = logging.getLogger(__name__)

_IN_CACHE = 17 * 2**20
"""Bytes that a processor's cache holds: the size of part of a batch that is computed fastest."""

_MODERATE = 64 * 2**20
"""Bytes that a part of 8 to 32 records may take where one record alone fills the cache."""

_LEAST_PART = 8
"""Records that a part has at least, so that a layer's matrices are worth a processor's while."""

_ON_GPU = 2**32
"""Bytes that a part may take on a GPU, which wants many records at a time."""


class Portion(NamedTuple):
    """A part of a batch that is computed at a time.

    Attributes:
        records: how many, at most.
        kept_bytes: how many bytes of written gradients each parameter may keep.
    """

    records: int
    kept_bytes: int


def admitted(
    model: nn.Module, loss: Loss, loop: Loop, probe: tuple[Tensor, Tensor], *, autocast: torch.dtype | None
) -> Means:
    """The first means that agrees with the loop.

    Args:
        model: the model.
        loss: one loss for each record.
        loop: the model's loop.
        probe: made-up records.
        autocast: half precision for activations; None: float32.

    Raises:
        InPlaceError: a layer's input is changed in place.
        LossShapeError: the loss is not one value for each record.
        UnsupportedModelError: not even the loop agrees with itself.
    """
    shapes = [p.shape for p in trainable_parameters(model).values()]
    for build in _candidates(model, loss, autocast):
        try:
            means = build()
            check_against_loop(means, loop, shapes, probe, lax=autocast is not None)
            exact = means
            if autocast and isinstance(means, BookKeeping):
                # Half precision would hide what a small nudge shows; the layers and their axes are the same without.
                exact = BookKeeping(model, loss)
                check_against_loop(exact, loop, shapes, probe)
            check_nearby(exact, loop, model, shapes, probe)
        except (InPlaceError, LossShapeError):
            raise
        except Exception as reason:
            log.debug("Gradients by other means: %s", reason)
        else:
            return means
    raise UnsupportedModelError(
        "The model computes something else each time: it draws random numbers, or keeps something of a batch for "
        "the next. Leave dropout out, and compute everything anew in every forward pass."
    )


def fitting_portion(means: Means, probe: tuple[Tensor, Tensor], max_memory: int | None) -> Portion:
    """How much of a batch to take at a time.

    Args:
        means: what computes the gradients.
        probe: made-up records.
        max_memory: bytes that activations and written gradients may take; None: as is fastest.
    """
    kept_bytes = (max_memory or _MODERATE) // 2
    pieces = means.pieces(*probe, PROBES * kept_bytes // _LEAST_PART)
    each = (means.held_bytes + sum(sized.piece.kept_bytes for sized in pieces)) // PROBES + 1
    if probe[0].is_cuda:
        fastest = _ON_GPU // each
    else:
        fastest = max(_IN_CACHE // each, min(_MODERATE // each, 4 * _LEAST_PART), _LEAST_PART)
    allowed = fastest if max_memory is None else max_memory // each
    most = max(1, min(fastest, allowed))
    return Portion(2 ** (most.bit_length() - 1), kept_bytes)  # a power of two divides most batches without a rest


def _candidates(model: nn.Module, loss: Loss, autocast: torch.dtype | None) -> Iterator[Callable[[], Means]]:
    """Means from the fastest to the one that always applies."""
    if autocast is None:
        yield partial(Program, model, loss)
    yield partial(BookKeeping, model, loss, autocast)
    yield partial(Vectorised, model, loss)
    yield partial(Loop, model, loss)
