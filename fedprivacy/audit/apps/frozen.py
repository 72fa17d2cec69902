"""Clocks and the operating system's randomness, as a training sees them that the audit wants to repeat exactly.

Only the audit's own thread sees them: for any other, time goes on and randomness is secret.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import ModuleType
from typing import Any
from unittest import mock

Replaced = tuple[ModuleType, str, Any]
"""A module, the name of something in it, and what stands in its place."""

SHIFT = 98_765_432_109_876_543
"""Three years in nanoseconds; changes every part of a time, from the year to the last digit."""

_BEGIN, _TICK = 1_900_000_000_000_000_000, 1_000_000
"""First time that is shown, and its growth whenever somebody looks: who waits for a time sees it come. Nanoseconds."""

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


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
