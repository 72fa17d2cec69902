"""One training of an audited app: what left, who joined each step, and the gradients that its optimiser was given.

Where the audit wants to repeat a training exactly, it shows it clocks, the operating system's randomness and seeds of
its own. Only the audit's own thread sees these clocks and secret numbers: for any other, time goes on and randomness is
secret.

Noise, masks and samples are as secret as the number that they come from. Anybody who tries all of four billion numbers
finds a seed of 32 bits, in minutes. Torch's generator on a CPU takes only the last 32 bits of any seed.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fedprivacy.audit.apps.adapter import App, Records, Rows, Settings
from fedprivacy.tasks import Shard

Replaced = tuple[ModuleType, str, Any]
"""A module, the name of something in it, and what stands in its place."""

SHIFT = 98_765_432_109_876_543
"""Three years in nanoseconds; changes every part of a time, from the year to the last digit."""

_BEGIN, _TICK = 1_900_000_000_000_000_000, 1_000_000
"""First time that is shown, and its growth whenever somebody looks: who waits for a time sees it come. Nanoseconds."""

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")

GUESSABLE = 48
"""Bits of a seed that somebody can find by trying, in days; an address in a process's memory has so many at most."""

ON_CPU = 32
"""Bits that torch takes of a seed on a CPU, the last ones."""

_FUNCTIONS = ((np.random, "seed"), (random, "seed"))
_MAKERS = ((np.random, "default_rng"),)
_CLASSES = ((np.random, "RandomState"), (random, "Random"))


@contextmanager
def replaced(things: Iterable[Replaced], user: type) -> Iterator[None]:
    """Put other things in their places while the block runs, also where the user's own modules imported them by name.

    Args:
        things: each with its module and its name there.
        user: class of the code that uses them; its own module is looked at, and those of its bases.
    """
    own = [module for kind in user.__mro__ if (module := sys.modules.get(kind.__module__)) is not None]
    with ExitStack() as patches:
        for module, name, new in things:
            old = getattr(module, name)
            aliases = [(m, alias) for m in own for alias, held in vars(m).items() if held is old]
            for place, alias in dict.fromkeys([(module, name), *aliases]):
                patches.enter_context(mock.patch.object(place, alias, new))
        yield


def frozen(secret: Callable[[int], bytes], shift: int) -> Iterator[Replaced]:
    """Clocks that depend on nothing but how often somebody looks, and secret bytes that are repeated.

    Args:
        secret: gives so many bytes.
        shift: nanoseconds by which all clocks are ahead.
    """
    mine, ticks = threading.get_ident(), count(_BEGIN + shift, _TICK)

    def instead(real: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            return (new if threading.get_ident() == mine else real)(*given, **named)

        return called

    for name in _CLOCKS:
        yield time, name, instead(getattr(time, name), lambda: next(ticks) / 1e9)
        yield time, f"{name}_ns", instead(getattr(time, f"{name}_ns"), lambda: next(ticks))
    yield uuid, "uuid1", instead(uuid.uuid1, lambda *_, **__: uuid.UUID(int=next(ticks)))
    yield datetime, "datetime", _watch(instead, ticks)
    yield os, "urandom", instead(os.urandom, secret)
    yield random, "_urandom", instead(os.urandom, secret)  # of `secrets`


def _watch(instead: Callable[..., Any], ticks: Iterator[int]) -> type:
    base = datetime.datetime

    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return base.fromtimestamp(next(ticks) / 1e9, tz)

    def in_utc() -> datetime.datetime:
        return now(datetime.UTC).replace(tzinfo=None)

    members = {"now": instead(base.now, now), "today": instead(base.today, now), "utcnow": instead(base.utcnow, in_utc)}
    return subclass(base, {name: staticmethod(new) for name, new in members.items()})


def subclass(base: type, members: dict[str, Any]) -> type:
    """Return a class that stands for its base: objects of the base count as its own in `isinstance`."""
    kind: Any = type("Watching", (type(base),), {"__instancecheck__": lambda _, value: isinstance(value, base)})
    made: type = kind(base.__name__, (base,), members)
    return made


@dataclass(slots=True)
class Seeds:
    """The seeds that were set during a training, in their order.

    Attributes:
        own: that the audit gave: to set them is no fault.
        change: by what to exclusive-or each guessable one; 0: leave them.
        again: guessable ones of another training, which stand for those that are set.
        secret: gives the seed where none is set; None: the operating system does.
        found: those that were set, as they came: numbers, bytes, lists; None: of the operating system.
        guessable: those of them that somebody can find by trying, and that the audit did not give.
    """

    own: frozenset[int] = frozenset()
    change: int = 0
    again: Sequence[int] = ()
    secret: Callable[[int], int] | None = None
    found: list[Any] = field(default_factory=list)
    guessable: list[int] = field(default_factory=list)

    def set(self, seed: Any, taken: int | None = None) -> Any:
        """Note a seed, and return the one to use.

        Args:
            seed: that is set.
            taken: how many of its bits the generator takes; None: all.
        """
        self.found.append(seed)
        if seed is None and self.secret is not None:
            return self.secret(128)
        if not isinstance(seed, int | np.integer) or int(seed) in self.own or bits(int(seed), taken) > GUESSABLE:
            return seed
        self.guessable.append(int(seed))
        place = len(self.guessable) - 1
        return (self.again[place] if place < len(self.again) else int(seed)) ^ self.change

    def watched(self) -> Iterator[Replaced]:
        """Ways to seed torch, numpy and Python's `random`, each replaced by one that notes the seed."""
        yield from ((module, name, self._watching(getattr(module, name))) for module, name in (*_FUNCTIONS, *_MAKERS))
        yield from ((module, name, self._watching_class(getattr(module, name))) for module, name in _CLASSES)
        yield from ((module, "manual_seed", self._watching_torch()) for module in (torch, torch.random))
        yield torch, "Generator", self._watching_generator()

    def _watching(self, seeding: Callable[..., Any]) -> Callable[..., Any]:
        def seeded(seed: Any = None, *more: Any, **named: Any) -> Any:
            return seeding(self.set(seed), *more, **named)

        return seeded

    def _watching_class(self, base: Any) -> type:
        seeds = self

        def made(new: Any, seed: Any = None, *more: Any) -> None:
            base.__init__(new, seeds.set(seed), *more)

        return subclass(base, {"__init__": made, "__new__": lambda kind, *_, **__: base.__new__(kind)})

    def _watching_torch(self) -> Callable[[int], torch.Generator]:
        seeding = torch.manual_seed

        def seeded(seed: int) -> torch.Generator:
            used = self.set(seed, ON_CPU)
            seeding(used if bits(seed) <= GUESSABLE else seed)  # of devices too, which take all of it
            return torch.default_generator.manual_seed(used)

        return seeded

    def _watching_generator(self) -> type:
        base, seeds = torch.Generator, self

        def seeded(generator: Any, seed: int) -> Any:
            base.manual_seed(generator, seeds.set(seed, ON_CPU if generator.device.type == "cpu" else None))
            return generator

        return subclass(base, {"manual_seed": seeded})


def bits(seed: int, taken: int | None = None) -> int:
    """Return the number of bits of a seed that count, if a generator takes at most `taken`; None: it takes all."""
    length = seed.bit_length()
    return length if taken is None else min(length, taken)


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
    def steps_taken(self) -> int:
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

    def note_batch(self, rows: Rows, batch: bool) -> None:
        self.pending.append((rows, batch))
        if batch:
            self.batches.append(rows)

    def note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self.steps.append(WatchedStep(self._joined_rows(), tuple(_flat(p) for p in parameters)))
        self.pending.clear()
        if self.sums is not None and len(self.steps) <= len(self.sums):
            for parameter, gradient in zip(parameters, self.sums[len(self.steps) - 1], strict=True):
                parameter.grad = torch.from_numpy(gradient).to(parameter).view_as(parameter)

    def _joined_rows(self) -> Rows:
        """Rows of the batches since the last step; single ones, where there was no batch (a loader looks at one)."""
        batches = [rows for rows, batch in self.pending if batch] or [rows for rows, _ in self.pending]
        return np.concatenate([np.zeros(0, dtype=np.int64), *batches])


def _flat(parameter: Tensor) -> Gradient:
    if parameter.grad is None:
        return np.zeros(parameter.numel())
    return parameter.grad.detach().to("cpu", torch.float64).numpy().ravel().copy()


def watch_training(
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
    hook = register_optimizer_step_pre_hook(watch.note_step)
    error: Exception | None = None
    left: Mapping[str, Any] = {}
    try:
        with replaced(things, type(app)):
            left = app.train(model, Records(shard, watch.note_batch), asked)
    except Exception as raised:
        error = raised
    finally:
        hook.remove()
    steps = watch.steps or [WatchedStep(rows, None) for rows in watch.batches]  # of an optimiser that was not seen
    return WatchedTraining(tuple(fields_of(left)), error, tuple(steps), tuple(seeds.guessable))


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
