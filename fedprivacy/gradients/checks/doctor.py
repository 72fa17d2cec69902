"""Everything that is wrong with a model, at once: its layers, then how it behaves once they are mended."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedprivacy.gradients.checks.behaviour import behavioural_problems, failure, unwise
from fedprivacy.gradients.checks.problems import Kind, Problem
from fedprivacy.gradients.checks.repair import made_private
from fedprivacy.gradients.checks.structure import structural_problems
from fedprivacy.gradients.engine import GradientEngine
from fedprivacy.gradients.losses import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What a batch looks like. No value of it is read.

    Attributes:
        loss: one loss for each record.
        inputs: shape [any, ...].
        targets: shape [any, ...].
    """

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
        trained: number of trainable parameters.
        frozen: number of frozen ones.
    """

    problems: tuple[Problem, ...]
    ran: bool
    means: str | None
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
    """Every problem of a model and a loss.

    The model is run if there is an example, and no problem in the way that `made_private` cannot mend: what is run
    is the mended model, so that problems which the mended ones hide show as well.

    Args:
        model: left as it is.
        example: the shape of a batch, and the loss; None: look at the layers only.
    """
    problems, means = structural_problems(model), None
    runs = example is not None and all(p.fixable or p.kind is Kind.UNREGISTERED for p in problems)
    if example is not None and runs:
        behaviour, means = _run(model, example, mend=any(p.fixable for p in problems))
        problems += behaviour
    sizes = [(0 if is_lazy(p) else p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    frozen = sum(size for size, _ in sizes) - trained
    return Diagnosis(problems=tuple(problems), ran=runs, means=means, trained=trained, frozen=frozen)


def _run(model: nn.Module, example: Example, *, mend: bool) -> tuple[list[Problem], str | None]:
    """The problems that running the model shows; and the engine's means, if it has none."""
    batch = example.inputs, example.targets
    try:
        model = made_private(model) if mend else model
        problems = behavioural_problems(model, example.loss, *batch)
        if problems:
            return problems, None
        engine = GradientEngine(model, example.loss)
        engine.prepare(*batch)
        return unwise(model, example.loss, *batch), engine.means
    except Exception as error:
        return [failure(model, example.loss, *batch, error)], None
