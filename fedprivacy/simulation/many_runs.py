"""The runs of a sweep, in as many processes as are wanted: what is finished is skipped, what was stopped goes on."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch
from rich.console import Console

from fedprivacy._support.logs import EventFormatter, LogFormat, also_about
from fedprivacy.flower.server.checkpoint import CHECKPOINT
from fedprivacy.runs.placement import HERE
from fedprivacy.runs.records.grid import FINISHED, SweptRun
from fedprivacy.runs.records.removal import charged_in
from fedprivacy.simulation.simulate import prepared, run
from fedprivacy.tasks import Task

LOG = "sweep.log"
"""Name of the file in the sweep's folder that holds the runs' warnings."""

Told = Callable[[SweptRun, str], None]
"""Is told of every run that ended, and why it failed; an empty text: it did not."""


def run_all(runs: Sequence[SweptRun], jobs: int, log: Path, tell: Told, task: Task | None = None) -> None:
    """Run what is not finished, so many at a time; one that fails does not stop the others.

    Every process computes with one thread, and imports what it needs once.

    Args:
        runs: of one sweep.
        task: the task, where it has no name that another process could load it by: with one job only.
        jobs: how many processes; with 1, it is this one.
        log: the file that receives what processes warn of.
        tell: called in this process, as soon as a run ends.
    """
    if jobs == 1:
        for one in runs:
            tell(one, run_one(one, task))
        return
    waiting, again = list(runs), set[Path]()
    while waiting:
        with _pool(jobs, log) as pool:
            for one, failure in _ended(pool, waiting, jobs):
                if failure is None and one.folder not in again:  # a process died: perhaps another run's fault
                    again.add(one.folder)
                    continue
                waiting.remove(one)
                tell(one, "its process died" if failure is None else failure)


def run_one(one: SweptRun, task: Task | None = None) -> str:
    """Run, or go on with, one run of a sweep; why it failed, or an empty text."""
    try:
        if (one.folder / CHECKPOINT).exists():
            plan = prepared({"resume": str(one.folder)}, task)
        else:
            if one.folder.exists() and not charged_in(one.folder):  # else it begins again beside its charges
                shutil.rmtree(one.folder)
            plan = prepared({**one.given, "out": str(one.folder)}, task)
        run(plan, HERE, Console(emoji=False, quiet=True), drawn=False)
    except Exception as error:
        logging.getLogger("fedprivacy.sweep").exception("%s failed.", one.folder.name)
        return f"{type(error).__name__}: {error}"
    (one.folder / FINISHED).touch()
    return ""


def _ended(pool: ProcessPoolExecutor, runs: Sequence[SweptRun], jobs: int) -> Iterator[tuple[SweptRun, str | None]]:
    """Each run that ended, and why it failed; None: the pool broke under it. No more are handed out than can run."""
    going: dict[Future[str], SweptRun] = {}
    left = iter(list(runs))
    broken = False
    while True:
        while not broken and len(going) < jobs and (one := next(left, None)) is not None:
            going[pool.submit(run_one, one)] = one
        if not going:
            return
        for future in wait(going, return_when=FIRST_COMPLETED).done:
            one = going.pop(future)
            try:
                yield one, future.result()
            except BrokenProcessPool:
                broken = True
                yield one, None


def _pool(jobs: int, log: Path) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads without their threads
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(log,))


def _begin(log: Path) -> None:
    """Prepare a process for its runs."""
    torch.set_num_threads(1)
    handler = logging.FileHandler(log)  # of all processes: none of them may rename it
    handler.setFormatter(EventFormatter(LogFormat.TEXT))
    also_about(process=os.getpid())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
