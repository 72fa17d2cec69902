"""Several seeds of a reproduction at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

from fedprivacy.reproductions.bench import measure, reproduction_of
from fedprivacy.reproductions.results import SeedResult

_LOOK_SECONDS = 0.2
"""Seconds between two looks at the messages of the processes."""


class News(NamedTuple):
    """A message about the work of one seed."""

    seed: int
    words: str
    rows: int


class SeedProcesses:
    """Measures seeds, so many at a time. A context manager, with which its processes end.

    Every process computes with one thread, so that how many there are changes no figure.

    Args:
        source: of the reproduction, from which every process loads it.
        data, out: see `fedprivacy.reproductions.bench.measure`.
        jobs: how many processes.
    """

    def __init__(self, source: str, data: Path, out: Path, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads without their threads
        self._news = context.Queue()
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_begin, initargs=(self._news, source, data, out)
        )

    def __enter__(self) -> SeedProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in list((self._pool._processes or {}).values()):  # they hold nothing that is not kept
            process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def measured(self, seeds: Sequence[int]) -> Iterator[News | SeedResult]:
        """Messages about the work under way, and every seed's result as soon as it is there.

        Raises:
            Exception: what a seed raised; the others are ended.
        """
        going: set[Future[SeedResult]] = {self._pool.submit(_measured, seed) for seed in seeds}
        while going:
            done, going = wait(going, _LOOK_SECONDS, FIRST_COMPLETED)
            yield from self._heard()
            for future in done:
                yield future.result()

    def _heard(self) -> Iterator[News]:
        while True:
            try:
                yield self._news.get_nowait()
            except Empty:
                return


_work: dict[str, Any] = {}
"""Arguments with which a process was begun."""


def _begin(news: Any, source: str, data: Path, out: Path) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that was told ends the others
    torch.set_num_threads(1)
    _work.update(news=news, reproduction=reproduction_of(source), data=data, out=out)


def _measured(seed: int) -> SeedResult:
    words, rows = "", 0

    def tell(progress: str) -> None:
        nonlocal words
        words = progress
        _work["news"].put(News(seed, words, rows))

    def advance(done: int) -> None:
        nonlocal rows
        rows = done
        _work["news"].put(News(seed, words, rows))

    return measure(_work["reproduction"], seed, _work["data"], _work["out"], tell=tell, advance=advance)
