"""Doctor: refuses models and losses without a sound private gradient, or diagnoses them.

Unsound ones are refused before a record is read; a diagnosis lists all their problems: those of their layers, then
those that show when the mended model is run. That is done on made-up records: these are public, and so are the
findings. No check reads a value of a client's record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedprivacy.gradients.engine import GradientEngine
from fedprivacy.gradients.methods import Obstacle
from fedprivacy.gradients.models import InPlaceError, Loss, LossShapeError, UnsupportedModelError, trainable_parameters
from fedprivacy.gradients.selfcheck import PROBES, in_double, made_up_records, nudge
from fedprivacy.gradients.structure import (
    Call,
    Kind,
    Problem,
    calls,
    changed_layers,
    failing_layer,
    first_to_change,
    in_words,
    made_private,
    overwritten_layers,
    state_of,
    structural_problems,
)
from fedprivacy.gradients.surroundings import one_at_a_time, undisturbed

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
        before = state_of(model)
        records, made_up_targets = made_up_records(
            inputs, targets, lambda batch, _: [model(x) for x in _each_alone(batch)]
        )
        problems = _side_effects(model, records) + _malformed_outputs(model, records)
        if not problems:
            outputs = model(records.clone())
            if not _differ(outputs, model(records.clone())):
                made_up_targets = _accepted_targets(loss, outputs.detach(), made_up_targets)
                problems = _mixing(model, records) + _loss_problems(loss, outputs.detach(), made_up_targets)
            elif not changed_layers(before, state_of(model)):
                problems.append(Problem("", Kind.CHANGES, *_CHANGES))
        if not problems:
            _gradients(model, loss, records[:1].clone(), made_up_targets[:1].clone())
        changed, remedy = (
            changed_layers(before, state_of(model)),
            "compute it anew in every forward pass",
        )
        return problems + [Problem(layer, Kind.STATE, _REMEMBERS, remedy) for layer in changed]


def failure(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, error: Exception) -> Problem:
    """Locate and explain the `error` with which `behavioural_problems` failed."""
    shape, target_shape = list(inputs.shape[1:]), targets.shape[1:]
    words = str(error).strip().partition("\n")[0].rstrip(".")
    what = f"raises {type(error).__name__} on made-up records of shape {shape}: {words}"
    remedy = "let it accept such records, or name the shape that it accepts"
    with undisturbed, _randomness_kept(inputs.device):
        for zeros in (inputs.new_zeros(1, *shape), inputs.new_zeros(PROBES, *shape)):
            layer = failing_layer(model, partial(model, zeros))
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
    late = [layer for layer in overwritten_layers(model, partial(model, records.clone())) if layer in trained]
    return problems + [Problem(layer, Kind.IN_PLACE, *_OVERWRITTEN) for layer in late]


def _first(model: nn.Module, records: Tensor, observed: Callable[[Tensor], object]) -> str | None:
    """Find the first layer that changes an observed property of the model's batch; None if none does."""
    batch, again = records.clone(), records.clone()
    before = observed(batch)
    model(batch)
    if observed(batch) == before:
        return None
    return first_to_change(model, partial(model, again), partial(observed, again))


def _malformed_outputs(model: nn.Module, records: Tensor) -> list[Problem]:
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


def _accepted_targets(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the targets, or zeros if the loss does not take such numbers for targets."""
    try:
        loss(outputs, targets.clone())
    except Exception:
        return torch.zeros_like(targets)
    return targets


def _loss_problems(loss: Loss, outputs: Tensor, targets: Tensor) -> list[Problem]:
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
    together = calls(model, partial(run, records.clone()))
    alone = [calls(model, partial(run, record)) for record in _each_alone(records)]
    if any([call.layer for call in one] != [call.layer for call in together] for one in alone):
        return Problem("", Kind.MIXES_RECORDS, _MIXES, _OWN_AXES)
    compared = [
        (call, _same(call.inputs, [one.inputs for one in ones]), _same(call.outputs, [one.outputs for one in ones]))
        for call, *ones in zip(together, *alone, strict=True)
    ]
    faults = [call for call, given, computed in compared if given is True and computed is False]
    spoilt = [call for call, given, _ in compared if given is False]
    return _mixing_problem(model, faults[0] if faults else together[-1], spoilt)


def _mixing_problem(model: nn.Module, fault: Call, spoilt: list[Call]) -> Problem:
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


def check_model(model: nn.Module) -> None:
    """Refuse a model whose layers mix records, draw random numbers, or otherwise cannot be trained with DP-SGD.

    Raises:
        UnsupportedModelError: names every offending layer and what to use instead.
    """
    _refuse(structural_problems(model))


def check_frozen(one: nn.Module, other: nn.Module) -> None:
    """Refuse models, returned by two calls of a task's `model()`, whose frozen parameters or buffers differ.

    Raises:
        UnsupportedModelError: names the differing values. Only trained parameters are sent.
    """
    _refuse(frozen_problems(one, other))


def frozen_problems(one: nn.Module, other: nn.Module) -> list[Problem]:
    """Find frozen values that differ between two models made by the same function; see `check_frozen`."""
    ours, theirs = _frozen(one), _frozen(other)
    differing = [name for name, value in ours.items() if name not in theirs or not torch.equal(value, theirs[name])]
    what = f"is made with other values of {', '.join(differing)} each time, and what is frozen does not travel"
    remedy = "load them from a file, or draw them with a generator of its own seed"
    return [Problem("", Kind.FROZEN_DIFFERS, what, remedy)] if differing else []


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    """Return frozen parameters, buffers and tensors that are plain attributes, by name."""
    values = {name: p for name, p in model.named_parameters() if not p.requires_grad} | dict(model.named_buffers())
    for name, layer in model.named_modules():
        own = {key: value for key, value in vars(layer).items() if isinstance(value, Tensor)}
        values |= {f"{name}.{key}" if name else key: value for key, value in own.items() if not value.requires_grad}
    return {name: value for name, value in values.items() if not is_lazy(value)}


@one_at_a_time()
def check_on_blank(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Run model and loss on made-up records, so that a task that cannot work fails before a record is read.

    The model must be one that `check_model` accepts. Only shape and type of a shard's inputs and targets are used.

    Raises:
        LossShapeError: the loss averages over the batch.
        UnsupportedModelError: names every layer that mixes records, draws random numbers, changes its batch, or keeps
            something between batches; or a loss that mixes records.
        Exception: any error that the model or the loss raises on a record of zeros.
    """
    _refuse(behavioural_problems(model, loss, inputs, targets))


def _refuse(problems: Iterable[Problem]) -> None:
    problems = list(problems)
    if not problems:
        return
    kinds = {p.kind for p in problems}
    error = _ERRORS.get(kinds.pop(), UnsupportedModelError) if len(kinds) == 1 else UnsupportedModelError
    doctor = " `fedprivacy doctor MODEL --fix` shows how to mend it." if any(p.fixable for p in problems) else ""
    raise error(f"The model cannot be trained with DP-SGD: {in_words(problems)}.{doctor}")


_ERRORS: dict[Kind, type[ValueError]] = {Kind.LOSS_SHAPE: LossShapeError, Kind.IN_PLACE: InPlaceError}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Shapes and types of a batch (inputs and targets, [any, ...] each, whose values are not read), and its loss."""

    loss: Loss
    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result of `diagnose`.

    Attributes:
        problems: structural ones first.
        ran: whether the model was run; otherwise its behaviour is unknown.
        method: name of the method by which the engine would compute its gradients; None if it was not or cannot be run.
        obstacle: the reason why no faster method is used.
        refused: every faster method that was tried, and why it is not used.
        trained: number of trainable parameters.
        frozen: number of frozen parameters.
    """

    problems: tuple[Problem, ...]
    ran: bool
    method: str | None
    obstacle: Obstacle | None
    refused: tuple[str, ...]
    trained: int
    frozen: int

    @property
    def sound(self) -> bool:
        """True if no finding keeps DP-SGD from training the model."""
        return all(problem.warning for problem in self.problems)

    @property
    def fixable(self) -> bool:
        """True if `made_private` fixes at least one problem."""
        return any(problem.fixable for problem in self.problems)


def diagnose(model: nn.Module, example: Example | None = None) -> Diagnosis:
    """Find every problem of a model and, if there is an example, of its loss. The model is not changed.

    The mended model is run if there is an example and `made_private` can mend every structural problem that prevents
    running it. So problems that structural ones hide are found as well.
    """
    problems, engine = structural_problems(model), None
    runs = example is not None and all(p.fixable or p.kind is Kind.UNREGISTERED for p in problems)
    if example is not None and runs:
        behaviour, engine = _run(model, example, mend=any(p.fixable for p in problems))
        problems += behaviour
    sizes = [(0 if is_lazy(p) else p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    frozen = sum(size for size, _ in sizes) - trained
    return Diagnosis(
        problems=tuple(problems),
        ran=runs,
        method=None if engine is None else engine.method,
        obstacle=None if engine is None else engine.obstacle,
        refused=() if engine is None else engine.refused,
        trained=trained,
        frozen=frozen,
    )


@one_at_a_time()
def _run(model: nn.Module, example: Example, *, mend: bool) -> tuple[list[Problem], GradientEngine | None]:
    """Run the model; return the problems that show, and the prepared engine if there are none."""
    batch = example.inputs, example.targets
    try:
        model = made_private(model) if mend else model
        problems = behavioural_problems(model, example.loss, *batch)
        if problems:
            return problems, None
        engine = GradientEngine(model, example.loss)
        engine.prepare(*batch)
        return unwise(model, example.loss, *batch), engine
    except Exception as error:
        return [failure(model, example.loss, *batch, error)], None
