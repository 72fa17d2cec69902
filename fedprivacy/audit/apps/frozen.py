"""Clocks, the operating system's randomness and seeds, as a training sees them that the audit wants to repeat exactly.

Only the audit's own thread sees these clocks and secret numbers: for any other, time goes on and randomness is secret.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

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
