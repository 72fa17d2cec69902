"""A sweep from its lists of settings to its results: for `fedprivacy.sweep` and for the command.

Its runs have as many processes as are wanted: what is finished is skipped, what was stopped goes on.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any
from warnings import warn

import torch
from rich.console import Console
from rich.markup import escape

from fedprivacy._support.console import bar_on, console_of
from fedprivacy._support.logs import EventFormatter, LogFormat, also_about
from fedprivacy.flower.server.checkpoint import CHECKPOINT
from fedprivacy.flower.simulated.engine import quiet_flower
from fedprivacy.runs.placement import HERE
from fedprivacy.runs.plans.advice import training_advice
from fedprivacy.runs.records.folder import check_usable
from fedprivacy.runs.records.grid import FINISHED, SweepGrid, SweepResults, SweptRun
from fedprivacy.runs.records.removal import charged_in
from fedprivacy.runs.settings.configuration import FIELDS, SWEEP_KEYS, ConfigError, Value
from fedprivacy.runs.settings.device import choose_device
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords, takes_settings
from fedprivacy.server.app import build_strategy
from fedprivacy.simulation.simulate import prepare_plan, run
from fedprivacy.tasks import Task

LOG = "sweep.log"
"""Name of the file in the sweep's folder that holds the runs' warnings."""

Told = Callable[[SweptRun, str], None]
"""Is told of every run that ended, and why it failed; an empty text: it did not."""


@partial(takes_settings, keys=SWEEP_KEYS)
def sweep(
    task: GivenTask = None,
    *,
    out: str | os.PathLike[str],
    seeds: int = 1,
    baseline: bool = False,
    baseline_learning_rates: float | Iterable[float] = (),
    metric: str | None = None,
    jobs: int | None = None,
    progress: bool = True,
    **settings: Given | Sequence[Value],
) -> SweepResults:
    """Simulate every combination of settings, each a value or a list of values, with several seeds.

    What is finished in the folder is not run again. Every run has a ledger of its own: to choose settings by what they
    reach on private records spends privacy that no run's epsilon counts (docs/how-to/sweep.md).

    >>> import fedprivacy as fp
    >>> swept = fp.sweep("cancer", clients=3, rounds=2, epsilon=[1.0, 2.0], out="sweeps/cancer", jobs=1, progress=False)
    >>> [row["runs"] for row in swept.combinations], swept.metric
    ([1, 1], 'accuracy')

    Args:
        task: as in `simulate`.
        out: folder of the runs, their tables and the figure.
        seeds: number of runs of each combination, with seeds from 0 on.
        baseline: whether each choice of the settings that are not privacy's is run without privacy, too.
        baseline_learning_rates: learning rates to try without privacy, where the private one would be a bad one; with
            them `baseline` is true.
        metric: name of the metric that figure and table show; None: the task's, or the nearest that was measured.
        jobs: number of processes; None: one for each core, or this process alone for a task that is an object.
        progress: whether a bar shows the runs.
        settings: of the runs, each a value or a list of values, see below.

    Returns:
        The results: `runs`, `combinations`, `metrics`, `figure()`. A warning names each run that failed; the same call
        tries it again.

    Raises:
        ConfigError: lists everything that is wrong with any combination, before the first run.
        RunFolderError: `out` cannot be written, or holds a run.
        KeyboardInterrupt: somebody ended the sweep; the same call goes on.
    """
    with spelt_as_keywords():
        named, own = by_key(task, {})
        lists = _lists(settings)
        if named.get("task"):
            lists["task"] = [str(named["task"])]
        rates = tuple(_several(baseline_learning_rates))
        _check_own(seeds, jobs, out, rates)
        grid = SweepGrid(lists, seeds, Path(out), baseline or bool(rates), rates, own)
        _check(grid, jobs)
        failed = run_grid(grid, jobs or 0, console_of(shown=progress), metric)
    for name, failure in failed.items():
        warn(f"{name} failed: {failure}; the same call tries it again.", stacklevel=2)
    results = SweepResults(grid, metric)
    results.save()
    return results


def run_grid(grid: SweepGrid, jobs: int, console: Console, metric: str | None = None) -> Mapping[str, str]:
    """Check every combination, run what is not finished and show a bar; return why runs failed, by their names.

    Args:
        grid: the runs.
        jobs: number of processes; 0: one for each core, or one for a task that only this process has.
        console: the console for the bar and for what is said before the first run.
        metric: name of the metric to show, which finished runs must have measured before the others begin.

    Raises:
        ConfigError: lists everything that is wrong with any combination.
    """
    plans = grid.check()
    SweepResults(grid, metric)  # refuses an unknown metric
    for plan in plans:  # what a plan does not need, and a run fails without
        choose_device(plan.config.device)
        with quiet_flower():
            build_strategy(plan.config)
    for words in dict.fromkeys(words for plan in plans for words in training_advice(plan)):
        console.print(f"[yellow]{escape(words)}", soft_wrap=True)
    check_usable(grid.out)
    grid.out.mkdir(parents=True, exist_ok=True)
    left = [one for one in grid.runs if not one.finished]
    jobs = min(jobs or (1 if grid.task else os.cpu_count() or 1), max(len(left), 1))
    failed: dict[str, str] = {}
    with bar_on(console, "run") as bar:
        shown = bar.add_task("", total=len(grid.runs), completed=len(grid.runs) - len(left))

        def tell(one: SweptRun, failure: str) -> None:
            if failure:
                failed[one.folder.name] = failure
            bar.update(shown, advance=1, description=escape(one.folder.name))

        run_all(left, jobs, grid.out / LOG, tell, grid.task)
    return failed


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
            for one, failure in _ended_runs(pool, waiting, jobs):
                if failure is None and one.folder not in again:  # a process died: perhaps another run's fault
                    again.add(one.folder)
                    continue
                waiting.remove(one)
                tell(one, "its process died" if failure is None else failure)


def run_one(one: SweptRun, task: Task | None = None) -> str:
    """Run, or go on with, one run of a sweep; why it failed, or an empty text."""
    try:
        if (one.folder / CHECKPOINT).exists():
            plan = prepare_plan({"resume": str(one.folder)}, task)
        else:
            if one.folder.exists() and not charged_in(one.folder):  # else it begins again beside its charges
                shutil.rmtree(one.folder)
            plan = prepare_plan({**one.given, "out": str(one.folder)}, task)
        run(plan, HERE, Console(emoji=False, quiet=True), drawn=False)
    except Exception as error:
        logging.getLogger("fedprivacy.sweep").exception("%s failed.", one.folder.name)
        return f"{type(error).__name__}: {error}"
    (one.folder / FINISHED).touch()
    return ""


def _ended_runs(
    pool: ProcessPoolExecutor, runs: Sequence[SweptRun], jobs: int
) -> Iterator[tuple[SweptRun, str | None]]:
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


def _check_own(seeds: object, jobs: object, out: object, rates: Iterable[object]) -> None:
    """Raise a ConfigError for what is of no type that a sweep takes."""
    problems = [
        f"{name} is {number!r}; give a whole number, 1 or more."
        for name, number in (("seeds", seeds), ("jobs", jobs if jobs is not None else 1))
        if not isinstance(number, int) or isinstance(number, bool) or number < 1
    ]
    if not isinstance(out, str | os.PathLike):
        problems.append(f"out is {out!r}; give a folder's path.")
    problems += [
        f"baseline_learning_rates has {rate!r}; give numbers."
        for rate in rates
        if not isinstance(rate, Real) or isinstance(rate, bool)
    ]
    if problems:
        raise ConfigError(problems)


def _check(grid: SweepGrid, jobs: int | None) -> None:
    """Raise a ConfigError for what a command line cannot spell."""
    problems = [
        f"{key} is no setting of a sweep, whose runs have seeds, folders and ledgers of their own; leave it out."
        for key in grid.lists
        if key in FIELDS and key not in SWEEP_KEYS
    ]
    if grid.task and isinstance(jobs, int) and jobs > 1:
        problems.append(
            f"jobs is {jobs}, and the task is an object, which other processes do not have; give "
            "task='path/to/file.py:Name', or jobs=1."
        )
    if problems:
        raise ConfigError(problems)


def _lists(settings: Mapping[str, Given | Sequence[Value]]) -> dict[str, list[Value]]:
    """Return the values of each setting by hyphenated key; a setting that is left open has no list."""
    lists: dict[str, list[Value]] = {}
    for name, given in settings.items():
        several = list(_several(given))
        for one in several:
            key, value = next(iter(by_key(None, {name: one})[0].items()))
            lists.setdefault(key, []).extend([] if value in (None, "") else [value])
        if not several:
            raise ConfigError([f"{name} is an empty list; give a value, or leave it out."])
    return {key: values for key, values in lists.items() if values}


def _several(given: Any) -> Iterable[Any]:
    """Return the values of a list, a range or an array; a single value is a list of one."""
    return given if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else [given]
