"""Which models and losses have a sound private gradient; the others are refused before a record is read."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedprivacy.gradients.checks.behaviour import behavioural_problems
from fedprivacy.gradients.checks.problems import Kind, Problem, in_words
from fedprivacy.gradients.checks.structure import structural_problems
from fedprivacy.gradients.errors import InPlaceError, LossShapeError, UnsupportedModelError
from fedprivacy.gradients.losses import Loss


def check_model(model: nn.Module) -> None:
    """Refuse a model whose layers mix records, draw random numbers, or otherwise cannot be trained with DP-SGD.

    Raises:
        UnsupportedModelError: names every offending layer and what to use instead.
    """
    _refuse(structural_problems(model))


def check_frozen(one: nn.Module, other: nn.Module) -> None:
    """Refuse models whose frozen parameters and buffers are drawn anew: only trained ones travel.

    Args:
        one: what the task's `model()` returned.
        other: what it returned when called again.

    Raises:
        UnsupportedModelError: names what differs.
    """
    _refuse(frozen_problems(one, other))


def frozen_problems(one: nn.Module, other: nn.Module) -> list[Problem]:
    """What two models of one making hold that is not trained and differs; see `check_frozen`."""
    ours, theirs = _frozen(one), _frozen(other)
    differing = [name for name, value in ours.items() if name not in theirs or not torch.equal(value, theirs[name])]
    what = f"is made with other values of {', '.join(differing)} each time, and what is frozen does not travel"
    remedy = "load them from a file, or draw them with a generator of its own seed"
    return [Problem("", Kind.FROZEN_DIFFERS, what, remedy)] if differing else []


def _frozen(model: nn.Module) -> dict[str, Tensor]:
    """Frozen parameters, buffers and tensors that are plain attributes, by name."""
    values = {name: p for name, p in model.named_parameters() if not p.requires_grad} | dict(model.named_buffers())
    for name, layer in model.named_modules():
        own = {key: value for key, value in vars(layer).items() if isinstance(value, Tensor)}
        values |= {f"{name}.{key}" if name else key: value for key, value in own.items() if not value.requires_grad}
    return {name: value for name, value in values.items() if not is_lazy(value)}


def check_on_blank(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Run model and loss on made-up records, so that a task that cannot work fails before a record is read.

    Args:
        model: as `check_model` accepts it.
        loss: one loss for each record.
        inputs: the shard's inputs; only their shape and type are used.
        targets: the shard's targets, likewise.

    Raises:
        LossShapeError: the loss averages over the batch.
        UnsupportedModelError: names every layer that mixes records, draws random numbers, changes its batch, or keeps
            something between batches; or a loss that mixes records.
        Exception: what the model or the loss raises on a record of zeros.
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
