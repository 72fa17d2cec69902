"""Threads that compute a model's gradients: one of the program's at a time, and a number of torch's.

A small model's operations finish before threads could share them. The fastest number depends on the machine, so it is
measured, by the least of several times: a time that other processes lengthened says nothing about the machine, and they
may be gone the next moment. While they are there, threads sleep after a short wait (`fedprivacy._support.native`), so
that too many cost less. A seeded run's bits must not depend on a time, so the caller chooses only among numbers of
threads with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_ALONE = RLock()

_LEAST_TURNS, _TURNS = 4, 12
_SECONDS = 0.5
"""Seconds after which no further turn begins, but for the least number of turns."""

_WORTH = 0.9
"""Share of the time that more threads must beat, because they are needed elsewhere, too."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for other threads of this process that compute gradients, of any model: models may share layers.

    A computation changes its model for a while: the parameters' values, the layers' modes and their `forward`.
    """
    with _ALONE:
        yield


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Let torch compute with so many threads, and with as many as before afterwards.

    The number is this thread's alone, but a thread that first uses torch meanwhile keeps it for good.
    """
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_speed(step: Callable[[], object]) -> list[int]:
    """Sort numbers of threads, up to torch's present number, by the least time of `step`; measured in turns."""
    most = torch.get_num_threads()
    numbers = [1 << power for power in range((most - 1).bit_length())] + [most]
    least = dict.fromkeys(numbers, math.inf)
    end = time.perf_counter() + _SECONDS
    for turn in range(_TURNS):
        if turn >= _LEAST_TURNS and time.perf_counter() > end:
            break
        for number in numbers:
            least[number] = min(least[number], _timed(step, number))
    return sorted(numbers, key=lambda number: least[number] / (1.0 if number == 1 else _WORTH))


def _timed(step: Callable[[], object], threads: int) -> float:
    with computing_with(threads):
        start = time.perf_counter()
        step()
        return time.perf_counter() - start
