"""The engine's self-check: three made-up records, computed by a candidate and by the loop.

The loop is exact, and so is `vmap`: these two apply where no rule does, the loop as the last resort.

A difference in float32 is checked again in float64: where a unit lies within rounding of a kink, such as zero for ReLU,
two right methods may take different sides of it, and differ by as much as the unit contributes.

Made-up records are public, and so is the check's result. It refutes a rule that does not fit a layer, an axis
that does not count the records, a parameter that is used behind a layer's back, and a model that draws random numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedprivacy.gradients.models import Loss, LossShapeError, checked_losses, restoring_parameters, trainable_parameters
from fedprivacy.gradients.pieces import Part, Placed, Written, squared_norms
from fedprivacy.gradients.products import AlikeProducts

PROBES = 3
_TOLERANCE = 1e-3
"""Tolerance relative to a gradient's size: wrong gradients are off by their own size, and float32 rounding by 1e-6 of
it, or more where a deep model cancels.
"""

_LAX_TOLERANCE = 0.1
"""Relative tolerance in half precision, which rounds by 2^-9 and adds up in deep models; and in float32 where units at
kinks make right methods differ, by up to 0.02 in ResNets.
"""

_EXACT_TOLERANCE = 1e-5
"""Relative tolerance in float64, where only the loss is rounded to float32."""

_NUDGE = 0.02
"""Distance by which parameters are moved."""

_NOTHING = 1e-12
"""Largest gradient that counts as zero: it is never clipped, and may vanish in one method and not in another."""


_Probe = tuple[Tensor, Tensor]
"""Made-up records: inputs and targets, [records, ...] each."""

_Figures = tuple[Tensor, Tensor]
"""Norms of records' gradients, [records], and their weighted sum, [d]."""


class Method(Protocol):
    """A way to compute per-record gradients.

    Attributes:
        name: name for people.
    """

    name: str

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes that the activations of the last batch took."""
        ...

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
        """Compute every trained parameter's piece, which may keep `kept_bytes`, for a batch [batch, ...] of one or
        more.
        """
        ...


class DisagreementError(ValueError):
    """A method computes other gradients than the loop."""


class PlaceError(DisagreementError):
    """A result depends on a record's place in the batch, or on the other records in it."""


class _Fallback:
    """Base of methods that write every record's gradient out. Their activations' memory is unknown."""

    held_bytes = 0

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self._loss = model, loss


class Vectorised(_Fallback):
    """Per-record gradients of any model that `torch.func` can transform."""

    name = "vmap"

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
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

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        # Each record has memory of its own: kernels may treat elements before an aligned address differently.
        records = ((inputs[i : i + 1].clone(), targets[i : i + 1].clone()) for i in range(len(inputs)))
        rows = [self._gradients(parameters, *record) for record in records]
        return _written(torch.stack(column) for column in zip(*rows, strict=True))

    def _gradients(self, parameters: list[nn.Parameter], record: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            (loss,) = checked_losses(self._loss(self.model(record), target), 1)
            return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def _written(gradients: Iterable[Tensor]) -> list[Placed]:
    return [Placed(Part(place), Written(rows)) for place, rows in enumerate(gradients)]


def made_up_records(
    inputs: Tensor, targets: Tensor, tried: Callable[[Tensor, Tensor], object]
) -> tuple[Tensor, Tensor]:
    """Make three records that are accepted, of the shape and type of rows of `inputs` and `targets`, each [any, ...].

    Raises:
        Exception: the error of `tried` on zeros, if those are not accepted either.
    """
    generator = torch.Generator().manual_seed(0)
    candidate = (_random_rows(inputs, generator), _random_rows(targets, generator))
    try:
        tried(*candidate)
    except LossShapeError:
        raise
    except Exception:  # the model does not accept such numbers; it must accept zeros
        candidate = (inputs.new_zeros(PROBES, *inputs.shape[1:]), targets.new_zeros(PROBES, *targets.shape[1:]))
        tried(*candidate)
    return candidate


def check_method(make: Callable[[nn.Module, Loss], Method], model: nn.Module, loss: Loss, probe: _Probe) -> Method:
    """Make a method and compare its gradients of made-up records with the loop's, in float32 and if need be in float64.

    Raises:
        DisagreementError: names the largest relative difference.
        Exception: any error that the method itself raises.
    """
    method, loop = make(model, loss), Loop(model, loss)
    try:
        _check(method, loop, probe, _TOLERANCE)
    except DisagreementError:
        if not _right_in_double(make, model, loss, probe):
            raise
        _check(method, loop, probe, _LAX_TOLERANCE)
    return method


def check_half(method: Method, model: nn.Module, loss: Loss, probe: _Probe) -> None:
    """Compare a method that computes in half precision with the loop, with the model's own parameters.

    Raises:
        DisagreementError: names the largest relative difference.
    """
    _compare(method, model, probe, _loop_figures(Loop(model, loss), probe), _LAX_TOLERANCE)


def in_double(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, Tensor]:
    """Copy a model in float64, and its inputs unless they are whole numbers."""
    return copy.deepcopy(model).double(), inputs.double() if inputs.is_floating_point() else inputs


def _right_in_double(make: Callable[[nn.Module, Loss], Method], model: nn.Module, loss: Loss, probe: _Probe) -> bool:
    """Return whether the method agrees with the loop in float64, where units at kinks are a billion times as rare."""

    def rounded(outputs: Tensor, targets: Tensor) -> Tensor:  # a loss may hold numbers in float32
        return loss(outputs.float(), targets)

    try:
        precise, inputs = in_double(model, probe[0])
        _check(make(precise, rounded), Loop(precise, rounded), (inputs, probe[1]), _EXACT_TOLERANCE)
    except Exception:  # it differs, or insists on float32
        return False
    return True


def _check(method: Method, loop: Loop, probe: _Probe, tolerance: float) -> None:
    """Compare with the model's parameters, and with others nearby, where a layer that starts at zero hides nothing.

    The parameters are moved a little meanwhile. There are more records, in another order, and they end in zeros after
    different lengths, as padded ones do: a model that sorts its batch would sort these.
    """
    _compare(method, loop.model, probe, _loop_figures(loop, probe), tolerance)
    with restoring_parameters(loop.model) as trained:
        for p in trained:
            p.data.add_(nudge(p.data))
        try:
            nearby = _reorder(*probe)
            expected = _loop_figures(loop, nearby)
        except Exception:  # the model does not accept such records
            return
        if bool(expected[0].isfinite().all()):
            _compare(method, loop.model, nearby, expected, tolerance)


def _loop_figures(loop: Loop, probe: _Probe) -> _Figures:
    """Compute the loop's figures with one record's gradient in memory at a time: float64 needs twice as much."""
    return _figures(loop, loop.model, probe, at_a_time=1)


def _compare(method: Method, model: nn.Module, probe: _Probe, expected: _Figures, tolerance: float) -> None:
    """Compare norms and a weighted sum of made-up records' gradients with the loop's."""
    ours = _figures(method, model, probe, at_a_time=len(probe[0]))
    for mine, true in zip(ours, expected, strict=True):
        error = float((mine - true).norm() / true.norm().clamp(min=_NOTHING))
        if not error <= tolerance:
            raise DisagreementError(f"{method.name} differs from the per-record loop by {error:.1g} of its size")


def nudge(parameter: Tensor) -> Tensor:
    """Return a small change of a parameter, after which no entry is zero or as symmetrical as at initialisation."""
    places = torch.arange(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    return _NUDGE * places.cos().view_as(parameter)


def _reorder(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return more records, in another order, with zeros after one, two or all thirds of their first axis."""
    order = torch.tensor([2, 1, 0, 2, 1], device=inputs.device)
    inputs, targets = inputs[order], targets[order]
    if inputs.dim() > 1:
        for record, thirds in zip(inputs, (2, 1, 3, 1, 2), strict=True):
            record[math.ceil(thirds * len(record) / 3) :] = 0
    return inputs, targets


def _figures(method: Method, model: nn.Module, probe: _Probe, *, at_a_time: int) -> _Figures:
    """Compute figures of records' gradients, some records at a time."""
    inputs, targets = probe
    weights = torch.linspace(1.0, -2.0, len(inputs), device=inputs.device)
    squared = torch.zeros(len(inputs), dtype=torch.float64, device=inputs.device)
    sums = [torch.zeros(p.shape, dtype=p.dtype, device=p.device) for p in trainable_parameters(model).values()]
    for start in range(0, len(inputs), at_a_time):
        rows = slice(start, start + at_a_time)
        placed = method.pieces(inputs[rows], targets[rows], kept_bytes=2**62)
        squared[rows] = squared_norms([piece for _, piece in placed], [0] * len(placed), 1)[0]
        for part, piece in placed:
            total = part.of(sums[part.place])
            piece.add_weighted_sum(weights[rows].to(total.dtype), total)
    return squared.sqrt(), torch.cat([total.flatten().double() for total in sums])


def _random_rows(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Draw numbers from 0 to 1, as most models accept them: brightness, scores, words 0 and 1."""
    shape = (PROBES, *rows.shape[1:])
    if rows.is_floating_point():
        return torch.rand(shape, generator=generator).to(rows)
    return torch.randint(2, shape, generator=generator).to(rows)
