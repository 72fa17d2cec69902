"""The engine's self-check: three made-up records, computed by a candidate and by the loop.

The loop is exact, and so is `vmap`: these two apply where no rule does, the loop last of all.

Made-up records are public, so what the check decides is, too. It refutes a rule that does not fit a layer, an axis
that does not count the records, a parameter that is used behind a layer's back, and a model that draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedprivacy.gradients.losses import Loss, LossShapeError, checked_losses
from fedprivacy.gradients.parameters import restored, trainable_parameters
from fedprivacy.gradients.pieces import Written
from fedprivacy.gradients.products import AlikeProducts
from fedprivacy.gradients.tape import Part, Sized

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
    """A way to compute per-record gradients.

    Attributes:
        name: for people.
    """

    name: str

    @property
    def held_bytes(self) -> int:
        """About how much memory the activations of the last batch took."""
        ...

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Every trained parameter's piece, which may keep so many bytes, for a batch [batch, ...] of one or more."""
        ...


class DisagreementError(ValueError):
    """A means that computes other gradients than the loop."""


class PlaceError(DisagreementError):
    """A result that depends on a record's place in the batch, or on the other records in it."""


class _Fallback:
    """What writes every record's gradient out. How much memory activations take beside them is not known."""

    held_bytes = 0

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self._loss = model, loss


class Vectorised(_Fallback):
    """Per-record gradients of everything that `torch.func` can transform."""

    name = "vmap"

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        def record_loss(parameters: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self.model, parameters, (record.unsqueeze(0),))
            return checked_losses(self._loss(outputs, target.unsqueeze(0)), 1)[0]

        gradients = vmap(grad(record_loss), in_dims=(None, 0, 0), randomness="error")
        with AlikeProducts():
            written = gradients(trainable_parameters(self.model), inputs, targets)
        return _written(written.values())


class Loop(_Fallback):
    """One backward pass for each record: the last resort, and the oracle of the self-check."""

    name = "loop"

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        # Each in memory of its own: kernels may treat what comes before an aligned address apart.
        records = ((inputs[i : i + 1].clone(), targets[i : i + 1].clone()) for i in range(len(inputs)))
        rows = [self._gradients(parameters, *record) for record in records]
        return _written([torch.stack(column) for column in zip(*rows, strict=True)])

    def _gradients(self, parameters: list[nn.Parameter], record: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            (loss,) = checked_losses(self._loss(self.model(record), target), 1)
            return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def _written(gradients: Iterable[Tensor]) -> list[Sized]:
    pieces = [Written(written) for written in gradients]
    return [Sized(Part(index), piece, piece.norms()) for index, piece in enumerate(pieces)]


def made_up_records(
    inputs: Tensor, targets: Tensor, tried: Callable[[Tensor, Tensor], object]
) -> tuple[Tensor, Tensor]:
    """Three records that are accepted, of the shape and type of rows of `inputs` and `targets`, each [any, ...].

    Raises:
        Exception: what is raised when zeros are `tried`, if those are not accepted either.
    """
    generator = torch.Generator().manual_seed(0)
    candidate = (_random_rows(inputs, generator), _random_rows(targets, generator))
    try:
        tried(*candidate)
    except LossShapeError:
        raise
    except Exception:  # such numbers are no records to this model; zeros must be
        candidate = (inputs.new_zeros(PROBES, *inputs.shape[1:]), targets.new_zeros(PROBES, *targets.shape[1:]))
        tried(*candidate)
    return candidate


def check_against_loop(means: Means, loop: Loop, probe: tuple[Tensor, Tensor], *, lax: bool = False) -> None:
    """Compare norms and a weighted sum of made-up records' gradients; `lax` allows for half precision's rounding.

    Raises:
        DisagreementError: names the largest relative difference.
        Exception: what the means itself raises.
    """
    ours, theirs = (_figures(m, loop.model, *probe) for m in (means, loop))
    for mine, true in zip(ours, theirs, strict=True):
        error = float((mine - true).norm() / true.norm().clamp(min=_NOTHING))
        if not error <= (_LAX_TOLERANCE if lax else _TOLERANCE):
            raise DisagreementError(f"{means.name} differs from the per-record loop by {error:.1g} of its size")


def check_nearby(means: Means, loop: Loop, probe: tuple[Tensor, Tensor]) -> None:
    """Once more what `check_against_loop` does, where a layer that starts at zero hides nothing of what comes before.

    The parameters are moved a little for this long. The records are more, come in another order, and end after
    different lengths in zeros, as padded ones do: a model that sorts its batch would sort these.
    """
    with restored(loop.model) as trained:
        for p in trained:
            p.data.add_(nudge(p.data))
        try:
            nearby = _reordered(*probe)
            sized = loop.pieces(*nearby, kept_bytes=0)
        except Exception:  # such records are none to this model
            return
        if all(bool(one.norms.isfinite().all()) for one in sized):
            check_against_loop(means, loop, nearby)


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


def _figures(means: Means, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The norms [batch] of the gradients and their weighted sum [d]."""
    weights = torch.linspace(1.0, -2.0, len(inputs), device=inputs.device)
    squared = torch.zeros(len(inputs), dtype=torch.float64, device=inputs.device)
    sums = [torch.zeros(p.shape, device=inputs.device) for p in trainable_parameters(model).values()]
    for sized in means.pieces(inputs, targets, kept_bytes=2**62):
        squared += sized.norms.double().square()
        sized.piece.add_weighted_sum(weights, sized.part.of(sums[sized.part.place]))
    return squared.sqrt(), torch.cat([total.flatten() for total in sums]).double()


def _random_rows(rows: Tensor, generator: torch.Generator) -> Tensor:
    """From 0 to 1, as most models accept them: brightness, scores, words 0 and 1."""
    shape = (PROBES, *rows.shape[1:])
    if rows.is_floating_point():
        return torch.rand(shape, generator=generator).to(rows)
    return torch.randint(2, shape, generator=generator).to(rows)
