"""Doctor: refuses models and losses without a sound private gradient, or diagnoses them.

Unsound ones are refused before a record is read; a diagnosis lists all their problems: those of their layers, then
those that show when the mended model is run.
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
from fedprivacy.gradients.threads import one_at_a_time


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
