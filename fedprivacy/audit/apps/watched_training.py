"""One training of an audited app: what left, who joined each step, and the gradients that its optimiser was given."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fedprivacy.audit.apps.adapter import App, Records, Rows, Settings
from fedprivacy.audit.apps.frozen import Seeds, frozen, replaced
from fedprivacy.tasks import Shard


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that left.

    Attributes:
        name: where it stood: `parameters.fc.weight`, `metrics.loss`, `arrays[2]`.
        array: its numbers, if it has more than one axis or place; else None.
        value: what it is, if it is no array: a number, a text.
    """

    name: str
    array: NDArray[Any] | None
    value: object = None

    @property
    def form(self) -> tuple[object, ...]:
        """The type and shape of an array, without its numbers; the type of anything else."""
        if self.array is not None:
            return "array", str(self.array.dtype), self.array.shape
        return (type(self.value).__name__,)

    @property
    def number(self) -> float | None:
        return float(self.value) if isinstance(self.value, int | float | np.number) else None


def fields_of(left: object, name: str = "") -> list[Field]:
    """The fields of what left, in their order."""
    if isinstance(left, Mapping):
        return [f for key, value in left.items() for f in fields_of(value, f"{name}.{key}" if name else str(key))]
    if isinstance(left, list | tuple):
        return [f for place, value in enumerate(left) for f in fields_of(value, f"{name}[{place}]")]
    if isinstance(left, Tensor):
        left = left.detach().cpu().numpy()
    if isinstance(left, np.ndarray) and left.ndim > 0:
        return [Field(name, left.copy())]
    return [Field(name, None, left.item() if isinstance(left, np.ndarray) else left)]


Gradient = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """One step of the optimiser.

    Attributes:
        joined: rows that were fetched for it, in their order.
        gradients: that it was taken with, by parameter; None: no optimiser of torch was seen.
    """

    joined: Rows
    gradients: tuple[Gradient, ...] | None


@dataclass(frozen=True, slots=True)
class WatchedTraining:
    """One call of `App.train`.

    Attributes:
        fields: all that left; empty if nothing did.
        error: that it raised; None: none.
        steps: in their order.
        guessable: seeds that it set and somebody can find by trying.
    """

    fields: tuple[Field, ...]
    error: Exception | None
    steps: tuple[WatchedStep, ...]
    guessable: tuple[int, ...]

    @property
    def taken(self) -> int:
        """Steps of an optimiser of torch."""
        return sum(step.gradients is not None for step in self.steps)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Those that left."""
        return tuple(field.array for field in self.fields if field.array is not None)


@dataclass(slots=True)
class _Watch:
    """Notes taken while an app trains.

    Attributes:
        sums: gradients that the optimiser is given in place of its own, step by step; None: its own.
        pending: what was fetched since the last step, and whether as a batch.
        batches: all of them.
        steps: all of them.
    """

    sums: Sequence[tuple[Gradient, ...]] | None = None
    pending: list[tuple[Rows, bool]] = field(default_factory=list)
    batches: list[Rows] = field(default_factory=list)
    steps: list[WatchedStep] = field(default_factory=list)

    def fetched(self, rows: Rows, batch: bool) -> None:
        self.pending.append((rows, batch))
        if batch:
            self.batches.append(rows)

    def stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self.steps.append(WatchedStep(self._joined(), tuple(_flat(p) for p in parameters)))
        self.pending.clear()
        if self.sums is not None and len(self.steps) <= len(self.sums):
            for parameter, gradient in zip(parameters, self.sums[len(self.steps) - 1], strict=True):
                parameter.grad = torch.from_numpy(gradient).to(parameter).view_as(parameter)

    def _joined(self) -> Rows:
        """Rows of the batches since the last step; single ones, where there was no batch (a loader looks at one)."""
        batches = [rows for rows, batch in self.pending if batch] or [rows for rows, _ in self.pending]
        return np.concatenate([np.zeros(0, dtype=np.int64), *batches])

    def all_steps(self) -> tuple[WatchedStep, ...]:
        """Return the steps of the optimiser; if none was seen, each batch is taken for a step."""
        return tuple(self.steps) or tuple(WatchedStep(rows, None) for rows in self.batches)


def _flat(parameter: Tensor) -> Gradient:
    if parameter.grad is None:
        return np.zeros(parameter.numel())
    return parameter.grad.detach().to("cpu", torch.float64).numpy().ravel().copy()


def trained(
    app: App,
    model: nn.Module,
    shard: Shard,
    asked: Settings,
    *,
    change: int = 0,
    again: Sequence[int] = (),
    sums: Sequence[tuple[Gradient, ...]] | None = None,
    shift: int | None = None,
) -> WatchedTraining:
    """Let an app train on a shard, and note what it does. The global generators are as the caller seeded them.

    Args:
        app: whose training is called.
        model: that it is given.
        shard: the records.
        asked: the settings.
        change: by what to exclusive-or each guessable seed that it sets.
        again: guessable seeds that stand for those that it sets.
        sums: gradients that its optimiser is given in place of its own, step by step; None: its own.
        shift: nanoseconds by which clocks are ahead that repeat themselves, as secret numbers then do; None: both are
            the real ones.
    """
    own = frozenset({asked.seed, asked.seed % 2**32, asked.seed % 2**31})
    watch, repeated = _Watch(sums), random.Random(asked.seed)
    seeds = Seeds(own, change, again, secret=None if shift is None else repeated.getrandbits)
    things = [*seeds.watched(), *(() if shift is None else frozen(repeated.randbytes, shift))]
    hook = register_optimizer_step_pre_hook(watch.stepped)
    error: Exception | None = None
    left: Mapping[str, Any] = {}
    try:
        with replaced(things, type(app)):
            left = app.train(model, Records(shard, watch.fetched), asked)
    except Exception as raised:
        error = raised
    finally:
        hook.remove()
    return WatchedTraining(tuple(fields_of(left)), error, watch.all_steps(), tuple(seeds.guessable))


def with_parameters_of(trained: nn.Module, model: nn.Module) -> nn.Module:
    """A new model with the parameters of one that was trained, as a server sends it: without a wrapper's hooks."""
    with torch.no_grad():
        for new, old in zip(model.parameters(), trained.parameters(), strict=False):
            if new.shape == old.shape:
                new.copy_(old)
    return model


def seed_everything(seed: int, *purpose: int) -> int:
    """Seed the global generators of torch, numpy and Python; return a seed for others, 62 bits."""
    words = np.random.SeedSequence([seed, *purpose]).generate_state(8)
    torch.manual_seed(int(words[:2].view(np.uint64)[0] >> 1))
    np.random.seed(words[2:6])
    random.seed(words.tobytes())
    return int(words[6:8].view(np.uint64)[0] >> 2) | 2**61


@contextmanager
def as_it_was() -> Iterator[None]:
    """Leave the global generators as they were before the block."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
