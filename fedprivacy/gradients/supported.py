"""Which models and losses have a private gradient at all."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedprivacy.gradients.engine import GradientEngine
from fedprivacy.gradients.errors import UnsupportedModelError
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.parameters import trainable_parameters


def check_model(model: nn.Module) -> None:
    """Refuse a model whose layers mix records, draw random numbers, or compute in half precision.

    Raises:
        UnsupportedModelError: names every offending layer and what to use instead.
    """
    problems = [problem for name, layer in model.named_modules() for problem in _layer_problems(name, layer)]
    problems += [
        f"parameter '{name}' is {parameter.dtype}: train in float32, or clipping is not exact"
        for name, parameter in trainable_parameters(model).items()
        if parameter.dtype not in {torch.float32, torch.float64}
    ]
    if not trainable_parameters(model):
        problems.append("no parameter has requires_grad=True: there is nothing to train")
    if problems:
        raise UnsupportedModelError("The model cannot be trained with DP-SGD: " + "; ".join(problems) + ".")


def check_frozen(one: nn.Module, other: nn.Module) -> None:
    """Refuse models whose frozen parameters and buffers are drawn anew: only trained ones travel.

    Args:
        one: what the task's `model()` returned.
        other: what it returned when called again.

    Raises:
        UnsupportedModelError: names what differs.
    """
    trained = trainable_parameters(one)
    ours, theirs = one.state_dict(), other.state_dict()
    differing = [n for n, value in ours.items() if n not in trained and not torch.equal(value, theirs[n])]
    if differing:
        raise UnsupportedModelError(
            f"{', '.join(differing)} is frozen and differs between two calls of model(): server and clients would each "
            "have their own. Load it from a file, or draw it with a generator of its own seed."
        )


def check_on_blank(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Compute one gradient of a record of zeros, so that a task that cannot work fails before a record is read.

    Args:
        model: the model.
        loss: one loss for each record.
        inputs: the shard's inputs; only their shape and type are used.
        targets: the shard's targets, likewise.

    Raises:
        LossShapeError: the loss averages over the batch.
        UnsupportedModelError: a layer keeps something between batches.
        RuntimeError: the model draws random numbers, or cannot be transformed.
    """
    before = dict(_state(model))
    blank_input, blank_target = (rows.new_zeros(1, *rows.shape[1:]) for rows in (inputs, targets))
    GradientEngine(model, loss).prepare(blank_input, blank_target)
    changed = sorted({name for (name, key), value in _state(model) if before.get((name, key)) != value})
    if changed:
        raise UnsupportedModelError(
            f"layer {', '.join(repr(name) for name in changed)} keeps something of a batch for the next, which carries "
            "records past the clipping: compute it anew in every forward pass."
        )


def _layer_problems(name: str, layer: nn.Module) -> Iterator[str]:
    kind = type(layer).__name__
    if isinstance(layer, _BatchNorm):
        yield f"layer '{name}' is a {kind}, whose statistics mix the records of a batch: use GroupNorm"
    elif getattr(layer, "track_running_stats", False):
        yield f"layer '{name}' is an {kind} that tracks running statistics: set track_running_stats=False"
    elif isinstance(layer, _DropoutNd) and layer.p > 0:
        yield f"layer '{name}' is a {kind}, whose masks follow a record's place in the batch: leave it out"


def _state(model: nn.Module) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    """Identity and version of everything that a layer holds beside its parameters."""
    for name, layer in model.named_modules():
        held = {key: value for key, value in vars(layer).items() if not key.startswith("_")} | layer._buffers
        for key, value in held.items():
            yield (name, key), (id(value), value._version if isinstance(value, Tensor) else 0)
