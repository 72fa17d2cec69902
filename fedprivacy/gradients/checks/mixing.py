"""Whether a model's output for one record depends on others, and which layer is at fault."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprivacy.gradients.checks.probe import Call, calls
from fedprivacy.gradients.checks.problems import Kind, Problem
from fedprivacy.gradients.parameters import trainable_parameters
from fedprivacy.gradients.selfcheck import nudge

_TOLERANCE = 1e-4
"""Relative to the largest value. Float32 kernels differ by 1e-6 for batches of different sizes; what mixes records
differs by its own size."""

MIXES = "mixes the records of a batch"
"""What is wrong, in words."""

_OWN_AXES = "compute over a record's own axes, never over the first one"

_Run = Callable[[Tensor], Any]
"""A model, or the same model with other parameters: inputs [batch, ...] -> outputs [batch, ...]."""


def mixing_problems(model: nn.Module, records: Tensor) -> list[Problem]:
    """The first layer whose output for one of `records` is another among the others than alone, if there is one.

    What differs in float32 is looked at again in float64: some devices round the factors of a product to ten bits.
    """
    if not any(_mixes(run, records) for run in _runs(model)):
        return []
    try:
        precise = copy.deepcopy(model).double()
        exact = records.double() if records.is_floating_point() else records
        precise(exact)
    except Exception:  # it insists on float32
        precise, exact = model, records
    run = next((run for run in _runs(precise) if _mixes(run, exact)), None)
    return [] if run is None else [_fault(precise, run, exact)]


def differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    if one.shape != other.shape:
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return not torch.equal(one, other)
    finite = one.detach()[one.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return not torch.allclose(one, other, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True)


def each_alone(records: Tensor) -> list[Tensor]:
    """A batch of one for each record, which may be changed in place."""
    return [records[i : i + 1].clone() for i in range(len(records))]


def _mixes(run: _Run, records: Tensor) -> bool:
    return differ(run(records.clone()), torch.cat([run(record) for record in each_alone(records)]))


def _runs(model: nn.Module) -> Iterator[_Run]:
    """The model with its own parameters, and with others nearby."""
    yield model
    nudged = {name: p + nudge(p) for name, p in trainable_parameters(model).items()}
    yield lambda records: functional_call(model, nudged, (records,))


def _fault(model: nn.Module, run: _Run, records: Tensor) -> Problem:
    together = calls(model, partial(run, records.clone()))
    alone = [calls(model, partial(run, record)) for record in each_alone(records)]
    if any([call.layer for call in one] != [call.layer for call in together] for one in alone):
        return Problem("", Kind.MIXES_RECORDS, MIXES, _OWN_AXES)
    compared = [
        (call, _same(call.inputs, [one.inputs for one in ones]), _same(call.outputs, [one.outputs for one in ones]))
        for call, *ones in zip(together, *alone, strict=True)
    ]
    faults = [call for call, given, computed in compared if given is True and computed is False]
    spoilt = [call for call, given, _ in compared if given is False]
    return _named(model, faults[0] if faults else together[-1], spoilt)


def _named(model: nn.Module, fault: Call, spoilt: list[Call]) -> Problem:
    halves = {str(t.dtype) for t in fault.outputs} & {"torch.float16", "torch.bfloat16"}
    if halves:
        what = f"computes in {halves.pop()}, where clipping is not exact"
        return Problem(fault.layer, Kind.PRECISION, what, "compute in float32, without autocast")
    within = f"{fault.layer}." if fault.layer else ""
    inner = [call for call in spoilt if call.order > fault.order and call.layer.startswith(within)]
    before = f", before it calls '{min(inner, key=lambda call: call.order).layer}'" if inner else ""
    time_first = getattr(model.get_submodule(fault.layer), "batch_first", True) is False
    remedy = "set batch_first=True, for the first axis counts the records" if time_first else _OWN_AXES
    return Problem(fault.layer, Kind.MIXES_RECORDS, MIXES + before, remedy)


def _same(together: list[Tensor], alone: list[list[Tensor]]) -> bool | None:
    """Whether each record has the same part in the tensors together as alone; None: that cannot be told."""
    if any(len(tensors) != len(together) for tensors in alone):
        return None
    answers = [_consists_of(whole, parts) for whole, *parts in zip(together, *alone, strict=True)]
    return False if False in answers else None if None in answers else True


def _consists_of(whole: Tensor, parts: list[Tensor]) -> bool | None:
    """Whether `whole` is made of `parts` along the one axis that counts the records, or equals each if none does."""
    if any(part.dim() != whole.dim() or part.shape != parts[0].shape for part in parts):
        return None
    axes = [axis for axis in range(whole.dim()) if whole.shape[axis] != parts[0].shape[axis]]
    if not axes:
        return not any(differ(whole, part) for part in parts)
    if len(axes) > 1 or whole.shape[axes[0]] != len(parts) or parts[0].shape[axes[0]] != 1:
        return None
    return not differ(whole, torch.cat(parts, axes[0]))
