"""Problems that show when a model and a loss are run, on made-up records.

Made-up records are public, so what is found is, too: no check reads a value of a client's record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedprivacy.gradients.checks.mixing import MIXES, differ, each_alone, mixing_problems
from fedprivacy.gradients.checks.probe import changed_layers, failing_layer, first_to_change, overwritten, state_of
from fedprivacy.gradients.checks.problems import Kind, Problem
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.selfcheck import PROBES, made_up_records

_RANDOM = ("draws random numbers", "leave out dropout, noise and augmentation")
_NEW = "write x = x + y instead of x += y, and inplace=False"
_EDITS = ("changes the batch that it is given", _NEW)
_OVERWRITTEN = ("has its input changed in place after it has read it", _NEW)
_REMEMBERS = (
    "keeps something of a batch for the next, which carries records past the clipping",
    "compute it anew in every forward pass",
)
_CHANGES = (
    "computes something else each time: it draws random numbers, or keeps something of a batch for the next",
    "compute everything from the record and the parameters",
)
_UNUSED = (
    "has parameters without influence on the loss, which noise moves all the same",
    "leave them out, or freeze them",
)
_INFINITE = (
    "has no finite gradient for a record of zeros: records like it are left out",
    "keep logarithms, roots and divisions away from zero",
)
_AXIS = "let the first axis count the records, also of a batch of one: squeeze(-1) instead of squeeze()"


def behavioural_problems(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> list[Problem]:
    """What running them tells about whether a model and a loss have a sound private gradient.

    The model is free of structural problems, and left as it is. No value of inputs and targets [any, ...] is read.

    Raises:
        Exception: what the model or the loss raises on a record of zeros; `failure` says where.
    """
    with _randomness_kept(inputs.device), torch.enable_grad():
        before = state_of(model)
        records, made_up_targets = made_up_records(
            inputs, targets, lambda batch, _: [model(x) for x in each_alone(batch)]
        )
        problems = _side_effects(model, records) + _malformed(model, records)
        if not problems:
            outputs = model(records.clone())
            if not differ(outputs, model(records.clone())):
                made_up_targets = _accepted(loss, outputs.detach(), made_up_targets)
                problems = mixing_problems(model, records) + _of_loss(loss, outputs.detach(), made_up_targets)
            elif not changed_layers(before, state_of(model)):
                problems.append(Problem("", Kind.CHANGES, *_CHANGES))
        if not problems:
            _gradients(model, loss, records[:1].clone(), made_up_targets[:1].clone())
        return problems + [Problem(x, Kind.STATE, *_REMEMBERS) for x in changed_layers(before, state_of(model))]


def failure(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, error: Exception) -> Problem:
    """Where `behavioural_problems` failed with `error`, and why."""
    shape, target_shape = list(inputs.shape[1:]), targets.shape[1:]
    words = str(error).strip().partition("\n")[0].rstrip(".")
    what = f"raises {type(error).__name__} on made-up records of shape {shape}: {words}"
    remedy = "let it accept such records, or name the shape that it accepts"
    with _randomness_kept(inputs.device):
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
    """What costs accuracy and no privacy: layers without influence, and records of zeros without a gradient."""
    try:
        zeros = (rows.new_zeros(1, *rows.shape[1:]) for rows in (inputs, targets))
        gradients = _gradients(model, loss, *zeros)
    except Exception:  # accepted were other made-up records
        return [Problem("", Kind.NO_GRADIENT, *_INFINITE, warning=True)]
    unused = dict.fromkeys(name.rpartition(".")[0] for name, gradient in gradients.items() if gradient is None)
    problems = [Problem(layer, Kind.UNUSED, *_UNUSED, warning=True) for layer in unused]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients.values() if gradient is not None):
        problems.append(Problem("", Kind.NO_GRADIENT, *_INFINITE, warning=True))
    return problems


def _gradients(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> dict[str, Tensor | None]:
    """The gradient of every trained parameter; None where it has no influence."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss(model(inputs), targets).sum(), list(trained.values()), allow_unused=True)
    return dict(zip(trained, gradients, strict=True))


def _side_effects(model: nn.Module, records: Tensor) -> list[Problem]:
    """Random numbers drawn and tensors changed in place, each with the first layer at fault."""

    def edited(batch: Tensor) -> object:
        return batch._version, torch.equal(batch, records)

    found = (
        (Kind.RANDOM, _RANDOM, _first(model, records, lambda batch: _random_state(batch.device))),
        (Kind.EDITS_BATCH, _EDITS, _first(model, records, edited)),
    )
    problems = [Problem(layer, kind, *words) for kind, words, layer in found if layer is not None]
    trained = {
        name for name, layer in model.named_modules() if any(p.requires_grad for p in layer.parameters(recurse=False))
    }
    late = [layer for layer in overwritten(model, partial(model, records.clone())) if layer in trained]
    return problems + [Problem(layer, Kind.IN_PLACE, *_OVERWRITTEN) for layer in late]


def _first(model: nn.Module, records: Tensor, observed: Callable[[Tensor], object]) -> str | None:
    """The first layer that changes what is observed of the batch that the model is given; None if none does."""
    batch, again = records.clone(), records.clone()
    before = observed(batch)
    model(batch)
    if observed(batch) == before:
        return None
    return first_to_change(model, partial(model, again), partial(observed, again))


def _malformed(model: nn.Module, records: Tensor) -> list[Problem]:
    """Outputs that are no tensor, or whose first axis does not count the records."""
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
    """The targets, or zeros if the loss does not take such numbers for targets."""
    try:
        loss(outputs, targets.clone())
    except Exception:
        return torch.zeros_like(targets)
    return targets


def _of_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> list[Problem]:
    """What is wrong with a loss, given the model's outputs [batch, ...] and made-up targets [batch, ...]."""
    batch, random_before = targets.clone(), _random_state(outputs.device)
    together = loss(outputs, batch)
    alone = [loss(*record) for record in zip(each_alone(outputs), each_alone(targets), strict=True)]
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
    if differ(together, loss(outputs, batch)):
        return [Problem(None, Kind.CHANGES, *_CHANGES)]
    if differ(together, torch.cat(alone)):
        return [Problem(None, Kind.MIXES_RECORDS, MIXES, "let it depend on one record's output and target")]
    return []


def _random_state(device: torch.device) -> tuple[object, ...]:
    """Where the random number generators stand that a model may use."""
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
