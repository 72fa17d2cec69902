"""Seeds that training code sets for random generators: watched, and changed to see what depends on them.

Noise, masks and samples are as secret as the number that they come from. Anybody who tries all of four billion numbers
finds a seed of 32 bits, in minutes. Torch's generator on a CPU takes only the last 32 bits of any seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedprivacy.audit.apps.frozen import Replaced, subclass

GUESSABLE = 48
"""Bits of a seed that somebody can find by trying, in days; an address in a process's memory has so many at most."""

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
