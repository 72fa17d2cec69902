"""What training code seeds random generators with: watched, and changed to see what depends on it.

Noise, masks and samples are as secret as the number that they come from. Whoever tries all of four billion numbers
finds a seed of 32 bits, in minutes.
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

_FUNCTIONS = ((torch, "manual_seed"), (torch.random, "manual_seed"), (np.random, "seed"), (random, "seed"))
_MAKERS = ((np.random, "default_rng"),)
_CLASSES = ((np.random, "RandomState"), (random, "Random"))


@dataclass(slots=True)
class Seeds:
    """The seeds that were set during a training, in their order.

    Attributes:
        own: that the audit gave: to set them is no fault.
        change: by what to exclusive-or each guessable one; 0: leave them.
        found: those that were set, as they came: numbers, bytes, lists; None: of the operating system.
    """

    own: frozenset[int] = frozenset()
    change: int = 0
    found: list[Any] = field(default_factory=list)

    @property
    def guessable(self) -> list[Any]:
        """Those that somebody can find by trying, and that the audit did not give."""
        return [seed for seed in self.found if self._is_guessable(seed)]

    def set(self, seed: Any) -> Any:
        """Note a seed, and return the one to use."""
        self.found.append(seed)
        return int(seed) ^ self.change if self.change and self._is_guessable(seed) else seed

    def _is_guessable(self, seed: Any) -> bool:
        return isinstance(seed, int | np.integer) and int(seed) not in self.own and int(seed).bit_length() <= GUESSABLE

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note every seed that is set by torch, numpy or Python's `random` while the block runs."""
        with ExitStack() as patches:
            for module, name in (*_FUNCTIONS, *_MAKERS):
                patches.enter_context(mock.patch.object(module, name, self._watching(getattr(module, name))))
            for module, name in _CLASSES:
                patches.enter_context(mock.patch.object(module, name, self._watching_class(getattr(module, name))))
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

    def _watching_generator(self) -> type:
        base, seeds = torch.Generator, self

        def seeded(generator: Any, seed: int) -> Any:
            base.manual_seed(generator, seeds.set(seed))
            return generator

        return _subclass(base, {"manual_seed": seeded})


def _subclass(base: type, members: dict[str, Any]) -> type:
    """A class that stands for its base, of whose objects it says that they are its own."""
    kind: Any = type("Watching", (type(base),), {"__instancecheck__": lambda _, made: isinstance(made, base)})
    made: type = kind(base.__name__, (base,), members)
    return made
