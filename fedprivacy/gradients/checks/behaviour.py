"""Problems that show when a model and a loss are run, on made-up records.

Made-up records are public, and so are the findings: no check reads a value of a client's record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprivacy.gradients.checks import probe
from fedprivacy.gradients.checks.problems import Kind, Problem
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.parameters import trainable_parameters
from fedprivacy.gradients.selfcheck import PROBES, in_double, made_up_records, nudge
from fedprivacy.gradients.surroundings import undisturbed

_RANDOM = ("draws random numbers", "leave out dropout, noise and augmentation, or have model() return it in eval()")
_NEW = "write x = x + y instead of x += y, and inplace=False"
_EDITS = ("changes the batch that it is given", _NEW)
_OVERWRITTEN = ("has its input changed in place after it has read it", _NEW)
_REMEMBERS = "keeps something of a batch for the next, which carries records past the clipping"
_CHANGES = (
    "computes something else each time: it draws random numbers, or keeps something of a batch for the next",
    "compute everything from the record and the parameters",
)
_UNUSED = (
    "has parameters without influence on the loss, which noise moves all the same",
    "leave them out, or freeze them",
)
_INFINITE = "has no finite gradient for a record of zeros: records like it are left out"
_AXIS = "let the first axis count the records, also of a batch of one: squeeze(-1) instead of squeeze()"
_TOLERANCE = 1e-4
"""Relative to the largest value. Float32 kernels differ by 1e-6 for batches of different sizes; what mixes records
differs by its own size."""

_MIXES = "mixes the records of a batch"
_OWN_AXES = "compute over a record's own axes, never over the first one"

_Run = Callable[[Tensor], Any]
"""A model, or the same model with other parameters: inputs [batch, ...] -> outputs [batch, ...]."""


def behavioural_problems(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> list[Problem]:
    """Find the problems with a private gradient that show when a model and a loss are run.

    The model must be free of structural problems; it is not changed. No value of inputs and targets [any, ...] is read.

    Raises:
        Exception: any error that the model or the loss raises on a record of zeros; `failure` locates it.
    """
    with undisturbed, _randomness_kept(inputs.device), torch.enable_grad():
        before = probe.state_of(model)
        records, made_up_targets = made_up_records(
            inputs, targets, lambda batch, _: [model(x) for x in _each_alone(batch)]
        )
        problems = _side_effects(model, records) + _malformed(model, records)
        if not problems:
            outputs = model(records.clone())
            if not _differ(outputs, model(records.clone())):
                made_up_targets = _accepted(loss, outputs.detach(), made_up_targets)
                problems = _mixing(model, records) + _of_loss(loss, outputs.detach(), made_up_targets)
            elif not probe.changed_layers(before, probe.state_of(model)):
                problems.append(Problem("", Kind.CHANGES, *_CHANGES))
        if not problems:
            _gradients(model, loss, records[:1].clone(), made_up_targets[:1].clone())
        changed, remedy = probe.changed_layers(before, probe.state_of(model)), "compute it anew in every forward pass"
        return problems + [Problem(layer, Kind.STATE, _REMEMBERS, remedy) for layer in changed]


def failure(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, error: Exception) -> Problem:
    """Locate and explain the `error` with which `behavioural_problems` failed."""
    shape, target_shape = list(inputs.shape[1:]), targets.shape[1:]
    words = str(error).strip().partition("\n")[0].rstrip(".")
    what = f"raises {type(error).__name__} on made-up records of shape {shape}: {words}"
    remedy = "let it accept such records, or name the shape that it accepts"
    with undisturbed, _randomness_kept(inputs.device):
        for zeros in (inputs.new_zeros(1, *shape), inputs.new_zeros(PROBES, *shape)):
            layer = probe.failing_layer(model, partial(model, zeros))
            if layer is not None:
                return Problem(layer, Kind.FAILS, what, remedy)
        try:
            loss(model(zeros), targets.new_zeros(PROBES, *target_shape))
        except Exception:
            return Problem(None, Kind.FAILS, what, "let it accept the model's outputs and such targets")
    return Problem("", Kind.FAILS, what, remedy)


def unwise(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> list[Problem]:
    """Find problems that cost accuracy but no privacy: layers without influence, and records of zeros without a
    gradient.
    """
    remedy = "keep logarithms, roots and divisions away from zero"
    infinite = [Problem("", Kind.NO_GRADIENT, _INFINITE, remedy, warning=True)]
    try:
        zeros = (rows.new_zeros(1, *rows.shape[1:]) for rows in (inputs, targets))
        gradients = _gradients(model, loss, *zeros)
    except Exception:  # accepted were other made-up records
        return infinite
    unused = dict.fromkeys(name.rpartition(".")[0] for name, gradient in gradients.items() if gradient is None)
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients.values() if gradient is not None)
    problems = [Problem(layer, Kind.UNUSED, *_UNUSED, warning=True) for layer in unused]
    return problems if finite else problems + infinite


def _gradients(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> dict[str, Tensor | None]:
    """Return the gradient of every trained parameter; None where it has no influence."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss(model(inputs), targets).sum(), list(trained.values()), allow_unused=True)
    return dict(zip(trained, gradients, strict=True))


def _side_effects(model: nn.Module, records: Tensor) -> list[Problem]:
    """Find random numbers that are drawn and tensors changed in place, each with the first layer at fault."""

    def edited(batch: Tensor) -> object:
        return batch._version, torch.equal(batch, records)

    found = (
        (Kind.RANDOM, _RANDOM, _first(model, records, lambda batch: _random_state(batch.device))),
        (Kind.EDITS_BATCH, _EDITS, _first(model, records, edited)),
    )
    problems = [Problem(layer, kind, *words) for kind, words, layer in found if layer is not None]
    trained = {name.rpartition(".")[0] for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    late = [layer for layer in probe.overwritten(model, partial(model, records.clone())) if layer in trained]
    return problems + [Problem(layer, Kind.IN_PLACE, *_OVERWRITTEN) for layer in late]


def _first(model: nn.Module, records: Tensor, observed: Callable[[Tensor], object]) -> str | None:
    """Find the first layer that changes an observed property of the model's batch; None if none does."""
    batch, again = records.clone(), records.clone()
    before = observed(batch)
    model(batch)
    if observed(batch) == before:
        return None
    return probe.first_to_change(model, partial(model, again), partial(observed, again))


def _malformed(model: nn.Module, records: Tensor) -> list[Problem]:
    """Find outputs that are no tensor, or whose first axis does not count the records."""
    for batch in (records.clone(), records[:1].clone()):
        outputs = model(batch)
        if not isinstance(outputs, Tensor):
            what = f"returns a {type(outputs).__name__}, not a tensor"
            return [Problem("", Kind.OUTPUT, what, "return the one tensor that the loss takes")]
        if outputs.shape[:1] != batch.shape[:1]:
            what = f"returns shape {list(outputs.shape)} for a batch of {len(batch)}"
            return [Problem("", Kind.OUTPUT, what, _AXIS)]
    return []


def _accepted(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the targets, or zeros if the loss does not take such numbers for targets."""
    try:
        loss(outputs, targets.clone())
    except Exception:
        return torch.zeros_like(targets)
    return targets


def _of_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> list[Problem]:
    """Find the problem of a loss, given the model's outputs [batch, ...] and made-up targets [batch, ...]."""
    batch, random_before = targets.clone(), _random_state(outputs.device)
    together = loss(outputs, batch)
    alone = [loss(*record) for record in zip(_each_alone(outputs), _each_alone(targets), strict=True)]
    for losses, count in ((together, PROBES), (alone[0], 1)):
        shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        if shape != [count]:
            what = f"returns shape {shape} for a batch of {count}"
            remedy = "return one value for each record, shape [batch] (for example reduction='none')"
            return [Problem(None, Kind.LOSS_SHAPE, what, remedy)]
    if _random_state(outputs.device) != random_before:
        return [Problem(None, Kind.RANDOM, *_RANDOM)]
    if not torch.equal(batch, targets):
        return [Problem(None, Kind.EDITS_BATCH, *_EDITS)]
    if _differ(together, loss(outputs, batch)):
        return [Problem(None, Kind.CHANGES, *_CHANGES)]
    if _differ(together, torch.cat(alone)):
        return [Problem(None, Kind.MIXES_RECORDS, _MIXES, "let it depend on one record's output and target")]
    return []


def _random_state(device: torch.device) -> tuple[object, ...]:
    """Return the states of the random number generators that a model may use."""
    numpy = np.random.get_state(legacy=False)["state"]
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    return random.getstate(), numpy["key"].tobytes(), numpy["pos"], *(state.numpy().tobytes() for state in states)


@contextmanager
def _randomness_kept(device: torch.device) -> Iterator[None]:
    """Leave the random number generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _mixing(model: nn.Module, records: Tensor) -> list[Problem]:
    """Find the first layer whose output for one of `records` differs between the batch and the record alone.

    A difference in float32 is checked again in float64: some devices round the factors of a product to ten bits.
    """
    if not any(_mixes(run, records) for run in _runs(model)):
        return []
    try:
        precise, exact = in_double(model, records)
        precise(exact)
    except Exception:  # it insists on float32
        precise, exact = model, records
    run = next((run for run in _runs(precise) if _mixes(run, exact)), None)
    return [] if run is None else [_fault(precise, run, exact)]


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ by more than rounding."""
    if one.shape != other.shape:
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return not torch.equal(one, other)
    finite = one.detach()[one.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return not torch.allclose(one, other, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True)


def _each_alone(records: Tensor) -> list[Tensor]:
    """Make a batch of one for each record; the batches may be changed in place."""
    return [records[i : i + 1].clone() for i in range(len(records))]


def _mixes(run: _Run, records: Tensor) -> bool:
    return _differ(run(records.clone()), torch.cat([run(record) for record in _each_alone(records)]))


def _runs(model: nn.Module) -> Iterator[_Run]:
    """Yield the model with its own parameters, and with others nearby."""
    yield model
    nudged = {name: p + nudge(p) for name, p in trainable_parameters(model).items()}
    yield lambda records: functional_call(model, nudged, (records,))


def _fault(model: nn.Module, run: _Run, records: Tensor) -> Problem:
    together = probe.calls(model, partial(run, records.clone()))
    alone = [probe.calls(model, partial(run, record)) for record in _each_alone(records)]
    if any([call.layer for call in one] != [call.layer for call in together] for one in alone):
        return Problem("", Kind.MIXES_RECORDS, _MIXES, _OWN_AXES)
    compared = [
        (call, _same(call.inputs, [one.inputs for one in ones]), _same(call.outputs, [one.outputs for one in ones]))
        for call, *ones in zip(together, *alone, strict=True)
    ]
    faults = [call for call, given, computed in compared if given is True and computed is False]
    spoilt = [call for call, given, _ in compared if given is False]
    return _named(model, faults[0] if faults else together[-1], spoilt)


def _named(model: nn.Module, fault: probe.Call, spoilt: list[probe.Call]) -> Problem:
    halves = {str(t.dtype) for t in fault.outputs} & {"torch.float16", "torch.bfloat16"}
    if halves:
        what = f"computes in {halves.pop()}, where clipping is not exact"
        return Problem(fault.layer, Kind.PRECISION, what, "compute in float32, without autocast")
    within = f"{fault.layer}." if fault.layer else ""
    inner = [call for call in spoilt if call.order > fault.order and call.layer.startswith(within)]
    before = f", before it calls '{min(inner, key=lambda call: call.order).layer}'" if inner else ""
    time_first = getattr(model.get_submodule(fault.layer), "batch_first", True) is False
    remedy = "set batch_first=True, for the first axis counts the records" if time_first else _OWN_AXES
    return Problem(fault.layer, Kind.MIXES_RECORDS, _MIXES + before, remedy)


def _same(together: list[Tensor], alone: list[list[Tensor]]) -> bool | None:
    """Return whether each record has the same part in the joint tensors as alone; None: that cannot be decided."""
    if any(len(tensors) != len(together) for tensors in alone):
        return None
    answers = [_consists_of(whole, parts) for whole, *parts in zip(together, *alone, strict=True)]
    return False if False in answers else None if None in answers else True


def _consists_of(whole: Tensor, parts: list[Tensor]) -> bool | None:
    """Return whether `whole` is made of `parts` along the record axis, or equals each part if there is no such axis."""
    if any(part.dim() != whole.dim() or part.shape != parts[0].shape for part in parts):
        return None
    axes = [axis for axis in range(whole.dim()) if whole.shape[axis] != parts[0].shape[axis]]
    if not axes:
        return not any(_differ(whole, part) for part in parts)
    if len(axes) > 1 or whole.shape[axes[0]] != len(parts) or parts[0].shape[axes[0]] != 1:
        return None
    return not _differ(whole, torch.cat(parts, axes[0]))
