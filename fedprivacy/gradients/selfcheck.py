"""The engine's self-check: three made-up records, computed by a candidate and by the loop.

Made-up records are public, so what the check decides is, too. It refutes a rule that does not fit a layer, an axis
that does not count the records, a parameter that is used behind a layer's back, and a model that draws random numbers.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from fedprivacy.gradients.errors import LossShapeError
from fedprivacy.gradients.methods.fallbacks import Loop
from fedprivacy.gradients.parameters import restored, split_flat
from fedprivacy.gradients.tape import Sized

PROBES = 3
_TOLERANCE = 1e-3
"""Wrong gradients are off by their own size; float32 rounding by 1e-6 of it, and more where a deep model cancels."""

_LAX_TOLERANCE = 0.1
"""Half precision rounds by 2^-9, and deep models add that up."""

_NUDGE = 0.02
"""How far parameters are moved."""

_NOTHING = 1e-12
"""Gradients this small are never clipped, and may vanish in one means and not in another."""


class Means(Protocol):
    """A way to compute per-record gradients."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def held_bytes(self) -> int:
        """About how much memory the activations of the last batch took."""
        ...

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Every trained parameter's piece for one batch that is not empty."""
        ...


class DisagreementError(ValueError):
    """A means that computes other gradients than the loop."""


def made_up_records(inputs: Tensor, targets: Tensor, loop: Loop) -> tuple[Tensor, Tensor]:
    """Three records that the model accepts, of the shape and type of rows of `inputs` and `targets`.

    Raises:
        Exception: what the model raises on a record of zeros, if it accepts none.
    """
    generator = torch.Generator().manual_seed(0)
    candidate = (_random_rows(inputs, generator), _random_rows(targets, generator))
    try:
        loop.pieces(*candidate, kept_bytes=0)
    except LossShapeError:
        raise
    except Exception:  # such numbers are no records to this model; zeros must be
        candidate = (inputs.new_zeros(PROBES, *inputs.shape[1:]), targets.new_zeros(PROBES, *targets.shape[1:]))
        loop.pieces(*candidate, kept_bytes=0)
    return candidate


def check_against_loop(
    means: Means, loop: Loop, shapes: list[torch.Size], probe: tuple[Tensor, Tensor], *, lax: bool = False
) -> None:
    """Compare norms and a weighted sum.

    Args:
        means: what is to be admitted.
        loop: computes the same, one record at a time.
        shapes: of the trainable parameters.
        probe: made-up records.
        lax: allow for the rounding of half precision.

    Raises:
        DisagreementError: names the largest relative difference.
        Exception: what the means itself raises.
    """
    weights = torch.linspace(1.0, -2.0, len(probe[0]), device=probe[0].device)
    ours, theirs = (_figures(m, shapes, weights, *probe) for m in (means, loop))
    for mine, true in zip(ours, theirs, strict=True):
        error = float((mine - true).norm() / true.norm().clamp(min=_NOTHING))
        if not error <= (_LAX_TOLERANCE if lax else _TOLERANCE):
            raise DisagreementError(f"{means.name} differs from the per-record loop by {error:.1g} of its size")


def check_nearby(
    means: Means, loop: Loop, model: nn.Module, shapes: list[torch.Size], probe: tuple[Tensor, Tensor]
) -> None:
    """Compare once more, where a layer that starts at zero hides nothing of what comes before it.

    The parameters are moved a little for this long. The records are more, come in another order, and end after
    different lengths in zeros, as padded ones do: a model that sorts its batch would sort these.

    Args:
        means: what is to be admitted; it has passed `check_against_loop`.
        loop: computes the same, one record at a time.
        model: whose gradients they compute; as it was, afterwards.
        shapes: of the trainable parameters.
        probe: made-up records.

    Raises:
        DisagreementError: names the largest relative difference.
        Exception: what the means itself raises.
    """
    with restored(model) as trained:
        for p in trained:
            p.data.add_(nudge(p.data))
        try:
            nearby = _reordered(*probe)
            sized = loop.pieces(*nearby, kept_bytes=0)
        except Exception:  # such records are none to this model
            return
        if all(bool(one.norms.isfinite().all()) for one in sized):
            check_against_loop(means, loop, shapes, nearby)


def nudge(parameter: Tensor) -> Tensor:
    """By how much to move a parameter, so that none is zero or as symmetrical as many are at the start."""
    places = torch.arange(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    return _NUDGE * places.cos().view_as(parameter)


def _reordered(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """More records than before, in another order, with zeros after one, two or all thirds of their first axis."""
    order = torch.tensor([2, 1, 0, 2, 1], device=inputs.device)
    inputs, targets = inputs[order], targets[order]
    if inputs.dim() > 1:
        for record, thirds in zip(inputs, (2, 1, 3, 1, 2), strict=True):
            record[math.ceil(thirds * len(record) / 3) :] = 0
    return inputs, targets


def _figures(
    means: Means, shapes: list[torch.Size], weights: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The norms [batch] of the gradients and their weighted sum [d]."""
    squared = torch.zeros(len(inputs), dtype=torch.float64, device=inputs.device)
    flat = torch.zeros(sum(shape.numel() for shape in shapes), device=inputs.device)
    views = split_flat(flat, shapes)
    for sized in means.pieces(inputs, targets, kept_bytes=2**62):
        squared += sized.norms.double().square()
        sized.piece.add_weighted_sum(weights, sized.part.of(views[sized.part.place]))
    return squared.sqrt(), flat.double()


def _random_rows(rows: Tensor, generator: torch.Generator) -> Tensor:
    """From 0 to 1, as most models accept them: brightness, scores, words 0 and 1."""
    shape = (PROBES, *rows.shape[1:])
    if rows.is_floating_point():
        return torch.rand(shape, generator=generator).to(rows)
    return torch.randint(2, shape, generator=generator).to(rows)
