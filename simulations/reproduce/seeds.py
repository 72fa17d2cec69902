"""Seeds that are to be measured, one by one or several at a time, with a bar that shows how far they are."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

import torch
from rich.markup import escape
from rich.progress import Progress, TaskID

from simulations.reproduce.bench import measure, reproduction_of
from simulations.reproduce.experiment import Reproduction
from simulations.reproduce.results import SeedResult

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
        data, out: see `simulations.reproduce.bench.measure`.
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


@dataclass(frozen=True)
class SeedsLeft:
    """The seeds to be measured, and the bar on which they are shown.

    Attributes:
        reproduction: of which seeds are measured.
        seeds: their numbers.
        data: the folder of its files.
        out: the folder of results.
        bar: shows how many rows there are.
    """

    reproduction: Reproduction
    seeds: Sequence[int]
    data: Path
    out: Path
    bar: Progress

    def one_by_one(self) -> list[SeedResult]:
        """Measure the seeds one after another, in this process."""
        found: list[SeedResult] = []
        task, rows = self._task()

        def tell(words: str) -> None:
            self.bar.update(task, description=f"seed {self.seeds[len(found)]}: {escape(words)}")

        def advance(done: int) -> None:
            self.bar.update(task, completed=len(found) * rows + done)

        for seed in self.seeds:
            found.append(measure(self.reproduction, seed, self.data, self.out, tell=tell, advance=advance))
        return found

    def together(self, source: str, jobs: int) -> list[SeedResult]:
        """Measure several seeds at a time, in processes that load the reproduction from its source."""
        found: list[SeedResult] = []
        task, rows = self._task()
        done = dict.fromkeys(self.seeds, 0)
        with SeedProcesses(source, self.data, self.out, jobs) as processes:
            for told in processes.measured(self.seeds):
                if isinstance(told, News):
                    done[told.seed] = told.rows
                    self.bar.update(task, description=f"seed {told.seed}: {escape(told.words)}")
                else:
                    done[told.seed] = rows
                    found.append(told)
                self.bar.update(task, completed=sum(done.values()))
        return found

    def _task(self) -> tuple[TaskID, int]:
        """The bar's task, and how many rows a seed has."""
        rows = len(self.reproduction.rows)
        return self.bar.add_task("", total=len(self.seeds) * rows), rows
