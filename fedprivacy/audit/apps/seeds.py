"""Seeds that training code sets for random generators: watched, and changed to see what depends on them.

Noise, masks and samples are as secret as the number that they come from. Anybody who tries all of four billion numbers
finds a seed of 32 bits, in minutes. Torch's generator on a CPU takes only the last 32 bits of any seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch

GUESSABLE = 40
"""Bits of a seed that somebody can find by trying."""

ON_CPU = 32
"""Bits that torch takes of a seed on a CPU, the last ones."""

_FUNCTIONS = ((np.random, "seed"), (random, "seed"))
_MAKERS = ((np.random, "default_rng"),)
_CLASSES = ((np.random, "RandomState"), (random, "Random"))


@dataclass(slots=True)
class Seeds:
    """The seeds that were set during a training, in their order.

    Attributes:
        own: that the audit gave: to set them is no fault.
        change: by what to exclusive-or each guessable one; 0: leave them.
        found: those that were set, as they came: numbers, bytes, lists; None: of the operating system.
        guessable: those of them that somebody can find by trying, and that the audit did not give.
    """

    own: frozenset[int] = frozenset()
    change: int = 0
    found: list[Any] = field(default_factory=list)
    guessable: list[int] = field(default_factory=list)

    def set(self, seed: Any, taken: int | None = None) -> Any:
        """Note a seed, and return the one to use.

        Args:
            seed: that is set.
            taken: how many of its bits the generator takes; None: all.
        """
        self.found.append(seed)
        if not isinstance(seed, int | np.integer) or int(seed) in self.own or bits(int(seed), taken) > GUESSABLE:
            return seed
        self.guessable.append(int(seed))
        return int(seed) ^ self.change

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note every seed that is set by torch, numpy or Python's `random` while the block runs."""
        with ExitStack() as patches:
            for module, name in (*_FUNCTIONS, *_MAKERS):
                patches.enter_context(mock.patch.object(module, name, self._watching(getattr(module, name))))
            for module, name in _CLASSES:
                patches.enter_context(mock.patch.object(module, name, self._watching_class(getattr(module, name))))
            for module in (torch, torch.random):
                patches.enter_context(mock.patch.object(module, "manual_seed", self._watching_torch()))
            patches.enter_context(mock.patch.object(torch, "Generator", self._watching_generator()))
            yield

    def _watching(self, seeding: Callable[..., Any]) -> Callable[..., Any]:
        def seeded(seed: Any = None, *more: Any, **named: Any) -> Any:
            return seeding(self.set(seed), *more, **named)

        return seeded

    def _watching_class(self, base: Any) -> type:
        seeds = self

        def made(new: Any, seed: Any = None, *more: Any) -> None:
            base.__init__(new, seeds.set(seed), *more)

        return _subclass(base, {"__init__": made, "__new__": lambda kind, *_, **__: base.__new__(kind)})

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

        return _subclass(base, {"manual_seed": seeded})


def bits(seed: int, taken: int | None = None) -> int:
    """Return the number of bits of a seed that count, if a generator takes at most `taken`; None: it takes all."""
    length = seed.bit_length()
    return length if taken is None else min(length, taken)


def _subclass(base: type, members: dict[str, Any]) -> type:
    """Return a class that stands for its base: objects of the base count as its own in `isinstance`."""
    kind: Any = type("Watching", (type(base),), {"__instancecheck__": lambda _, value: isinstance(value, base)})
    made: type = kind(base.__name__, (base,), members)
    return made
