"""Which models and losses have a sound private gradient.

Others are refused before a record is read, or told everything that is wrong with them: their layers, then how they
behave once these are mended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedprivacy.gradients.checks.behaviour import behavioural_problems, failure, unwise
from fedprivacy.gradients.checks.problems import Kind, Problem, in_words
from fedprivacy.gradients.checks.structure import made_private, structural_problems
from fedprivacy.gradients.engine import GradientEngine
from fedprivacy.gradients.losses import InPlaceError, Loss, LossShapeError, UnsupportedModelError
from fedprivacy.gradients.methods.obstacle import Obstacle


def check_model(model: nn.Module) -> None:
    """Refuse a model whose layers mix records, draw random numbers, or otherwise cannot be trained with DP-SGD.

    Raises:
        UnsupportedModelError: names every offending layer and what to use instead.
    """
    _refuse(structural_problems(model))


def check_frozen(one: nn.Module, other: nn.Module) -> None:
    """Refuse models, returned by two calls of a task's `model()`, whose frozen parameters and buffers are drawn anew.

    Raises:
        UnsupportedModelError: names what differs. Only what is trained travels.
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

    The model is one that `check_model` accepts. Of a shard's inputs and targets only shape and type are used.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What a batch looks like: inputs and targets, shape [any, ...] each, of which no value is read; and its loss."""

    loss: Loss
    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What `diagnose` has found.

    Attributes:
        problems: structural ones first.
        ran: whether the model was run; else how it behaves is not known.
        means: how the engine would compute its gradients; None if it was not run, or cannot be.
        obstacle: what keeps it from faster means.
        refused: every faster means that was tried, and why it is not used.
        trained: number of trainable parameters; `frozen` of the others.
    """

    problems: tuple[Problem, ...]
    ran: bool
    means: str | None
    obstacle: Obstacle | None
    refused: tuple[str, ...]
    trained: int
    frozen: int

    @property
    def sound(self) -> bool:
        """Whether nothing that was found keeps DP-SGD from training the model."""
        return all(problem.warning for problem in self.problems)

    @property
    def fixable(self) -> bool:
        """Whether `made_private` mends something."""
        return any(problem.fixable for problem in self.problems)


def diagnose(model: nn.Module, example: Example | None = None) -> Diagnosis:
    """Every problem of a model and, if there is an example, of its loss. The model is left as it is.

    It is run if there is an example, and no problem in the way that `made_private` cannot mend: what is run is the
    mended model, so that problems which the mended ones hide show as well.
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
        means=None if engine is None else engine.means,
        obstacle=None if engine is None else engine.obstacle,
        refused=() if engine is None else engine.refused,
        trained=trained,
        frozen=frozen,
    )


def _run(model: nn.Module, example: Example, *, mend: bool) -> tuple[list[Problem], GradientEngine | None]:
    """The problems that running the model shows; and the prepared engine, if it has none."""
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
