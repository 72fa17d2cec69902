"""Tries things in forked processes, a few at a time: modules that are slow to import are there already."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from tests.privacy.bugs.bug import Bug
from tests.privacy.bugs.planting import changed, plant
from tests.privacy.bugs.swapped import planted

PASSED, FAILED, CANNOT_RUN = int(pytest.ExitCode.OK), int(pytest.ExitCode.TESTS_FAILED), 70
"""Exit codes of a trial; any other one says that it could not run either."""

HEAVY = (
    "torch.func",
    "scipy.special",
    "scipy.stats",
    "hypothesis.extra.numpy",
    "typer.testing",
    "flwr.clientapp",
    "flwr.serverapp",
    "psycopg",
    "cryptography.x509",
    "safetensors.torch",
    "sqlalchemy.dialects.sqlite",
    "fastapi",
    "_hypothesis_pytestplugin",
)
"""Modules of others that most tests import, and that take seconds."""

Named = TypeVar("Named")

Trial = Callable[[Path], int]
"""Something to try, with an empty folder of its own; returns an exit code."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Named]):
    """The end of a trial.

    Attributes:
        named: the thing that was tried.
        code: its exit code; below zero, the signal that ended it.
        output: its printed lines.
        seconds: processor time.
    """

    named: Named
    code: int
    output: str
    seconds: float


def import_heavy() -> None:
    """Import modules that are slow to import; the garbage collector of forks passes them by."""
    for name in HEAVY:
        importlib.import_module(name)
    gc.freeze()


def import_tests(tests: Iterable[str]) -> None:
    """Import the modules of tests, and the code that they import, for forks that run them."""
    for file in {test.partition("::")[0] for test in tests}:
        importlib.import_module(file.removesuffix(".py").replace("/", "."))
    gc.freeze()


def run_tests(tests: Iterable[str], folder: Path, plugins: Iterable[object] = ()) -> int:
    """Run tests in this process, up to the first failure; pytest's exit code."""
    options = ["-x", "-q", "--tb=short", "-o", "addopts=--doctest-modules", f"--basetemp={folder / 'tests'}"]
    options += ["-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
    options += ["-p", "no:tests.leftovers"]  # what a test leaves behind fails a run, and would count as a bug noticed
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # some take long to import
    return int(pytest.main([*options, *tests], plugins=list(plugins)))


def run_by_import(bug: Bug, tests: Iterable[str], folder: Path, plugins: Iterable[object] = ()) -> int:
    """Import the changed code, and run tests of it."""
    plant(changed(bug.changes))
    return run_tests(tests, folder, plugins)


def run_in_place(bug: Bug, tests: Iterable[str], folder: Path, plugins: Iterable[object] = ()) -> int:
    """Change code that is imported already, and run tests of it."""
    with planted(bug.meaning):
        return run_tests(tests, folder, plugins)


def tried(
    trials: Iterable[tuple[Named, Trial]], *, limit: int, processes: int | None = None
) -> Iterator[Outcome[Named]]:
    """Run trials, each in a process of its own, and tell of each as it ends.

    Args:
        trials: with names; taken as there is room.
        limit: seconds after which a trial is ended, by SIGALRM. It is for those that hang.
        processes: running at once; None: two, or one on a single core.
    """
    waiting, running = iter(trials), dict[int, tuple[Named, Path]]()  # by process
    room = processes or min(os.cpu_count() or 1, 2)
    memory = Path("/dev/shm")  # where durable writes cost nothing
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        try:
            while True:
                for named, trial in islice(waiting, room - len(running)):
                    own = Path(tempfile.mkdtemp(dir=folder))
                    running[_forked(trial, own, limit)] = named, own
                if not running:
                    return
                yield _ended(running)
        finally:
            for child in running:
                _end_group(child)
                os.waitpid(child, 0)


def _forked(trial: Trial, folder: Path, limit: int) -> int:
    child = os.fork()
    if child:
        return child
    code = CANNOT_RUN
    try:
        os.setsid()  # what it starts ends with it
        signal.alarm(limit)
        with (folder / "output").open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = trial(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _ended(running: dict[int, tuple[Named, Path]]) -> Outcome[Named]:
    """Wait for one of the running trials."""
    child, status, used = os.wait3(0)
    _end_group(child)
    named, folder = running.pop(child)
    output = (folder / "output").read_text(errors="replace")
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(named, os.waitstatus_to_exitcode(status), output, used.ru_utime + used.ru_stime)


def _end_group(child: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
