"""How many threads compute a model's gradients: at most as many as torch has, and fewer where that is faster.

A small model's operations are over before threads have shared them, and where others keep the processors busy, each
operation waits for the thread that came last: eight times as long for a small convolutional net on two busy cores.
Which number is fastest depends on the machine and on its other work, so it is measured; a seeded run's bits must not
depend on that, so only numbers of threads with the same bits are to be chosen from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

_TURNS = 5
_SECONDS = 0.5
"""After this long no further turn begins; two are taken at least."""

_WORTH = 0.9
"""More threads must take less than this part of the time: they are wanted elsewhere, too."""


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Let torch compute with so many threads, in the whole process, and with as many as before afterwards."""
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
    """Numbers of threads, up to as many as torch has now, from the one that takes `step` fastest; measured in turns."""
    most = torch.get_num_threads()
    numbers = [1 << power for power in range((most - 1).bit_length())] + [most]
    taken: dict[int, list[float]] = {number: [] for number in numbers}
    for number in numbers:  # the first of each may have threads to start, and memory to fetch
        _timed(step, number)
    end = time.perf_counter() + _SECONDS
    for turn in range(_TURNS):
        if turn >= 2 and time.perf_counter() > end:
            break
        for number, times in taken.items():
            times.append(_timed(step, number))
    return sorted(numbers, key=lambda number: median(taken[number]) / (1.0 if number == 1 else _WORTH))


def _timed(step: Callable[[], object], threads: int) -> float:
    with computing_with(threads):
        start = time.perf_counter()
        step()
        return time.perf_counter() - start
