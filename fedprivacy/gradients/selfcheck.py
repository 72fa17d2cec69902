"""The engine's self-check: three made-up records, computed by a candidate and by the loop.

Made-up records are public, so what the check decides is, too. It refutes a rule that does not fit a layer, an axis
that does not count the records, a parameter that is used behind a layer's back, and a model that draws random numbers.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedprivacy.gradients.errors import LossShapeError
from fedprivacy.gradients.fallbacks import Loop
from fedprivacy.gradients.parameters import split_flat
from fedprivacy.gradients.tape import Sized

PROBES = 3
_TOLERANCE = 1e-3
"""Wrong gradients are off by their own size; float32 rounding by 1e-6 of it, and more where a deep model cancels."""

_LAX_TOLERANCE = 0.1
"""Half precision rounds by 2^-9, and deep models add that up."""

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
    weights = torch.tensor([1.0, -2.0, 0.5], device=probe[0].device)
    ours, theirs = (_figures(m, shapes, weights, *probe) for m in (means, loop))
    for mine, true in zip(ours, theirs, strict=True):
        error = float((mine - true).norm() / true.norm().clamp(min=_NOTHING))
        if not error <= (_LAX_TOLERANCE if lax else _TOLERANCE):
            raise DisagreementError(f"{means.name} differs from the per-record loop by {error:.1g} of its size")


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
