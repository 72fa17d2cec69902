"""A copy of the project in which bugs can be planted, and forked processes that run its tests.

The checkout's own files are never touched, so a run that is killed leaves nothing wrong behind. What costs seconds to
import is imported once, here; each run of tests is a fork that has it already and imports the project from the copy.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("fedprivacy", "server", "clients", "tests", "docs")
_HEAVY = (
    "torch.func",
    "scipy.special",
    "scipy.stats",
    "hypothesis.extra.numpy",
    "alembic.command",
    "typer.testing",
    "flwr.clientapp",
    "flwr.serverapp",
    "psycopg",
)
_SLEEP = 0.02  # seconds between two looks at a child


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run of tests.

    Attributes:
        code: pytest's exit code; negative, as of a signal, if they ran for too long.
        output: what they printed.
        seconds: how long they took.
    """

    code: int
    output: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all tests passed."""
        return self.code == pytest.ExitCode.OK

    @property
    def failed(self) -> bool:
        """Whether a test failed: all could begin, and one was not content."""
        return self.code == pytest.ExitCode.TESTS_FAILED

    @property
    def ended(self) -> str:
        """How they ended, for people; the printed lines of who is stopped do not tell."""
        return f"{'code' if self.code >= 0 else 'stopped, signal'} {abs(self.code)} after {self.seconds:.0f} s"


def copy_project(folder: Path) -> None:
    """Fill an empty folder with the project."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def import_heavy() -> None:
    """Import what is slow to import, once; forks find it there, and the collector of garbage passes it by."""
    for name in _HEAVY:
        importlib.import_module(name)
    gc.freeze()


class Workbench:
    """One copy of the project.

    Args:
        folder: an empty one, that the copy may fill.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_project(folder)
        import_heavy()
        self._age = int(time.time())

    @contextmanager
    def planted(self, file: str, text: str) -> Iterator[None]:
        """Give a file of the copy another text for a while."""
        path = self.folder / file
        original = path.read_text()
        try:
            self._write(path, text)
            yield
        finally:
            self._write(path, original)

    def run(self, tests: Sequence[str], limit: float, plugins: Sequence[object] = ()) -> Outcome:
        """Run tests of the copy in a process of their own, up to the first failure.

        Args:
            tests: files or node ids, relative to the project.
            limit: seconds; who takes longer is stopped.
            plugins: of pytest.
        """
        output, start = self.folder / "output.txt", time.monotonic()
        child = os.fork()
        if child == 0:
            self._run_and_exit(tests, output, plugins)
        code = _exit_code(child, start + limit)
        return Outcome(code, output.read_text(errors="replace"), time.monotonic() - start)

    def _write(self, path: Path, text: str) -> None:
        """Never twice with one time: bytecode is believed as long as time and size of its source agree."""
        path.write_text(text)
        self._age += 1
        os.utime(path, (self._age, self._age))

    def _run_and_exit(self, tests: Sequence[str], output: Path, plugins: Sequence[object]) -> None:
        code = int(pytest.ExitCode.INTERNAL_ERROR)
        try:
            os.setsid()  # what the tests start is stopped with them
            with output.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(self.folder)
            sys.path.insert(0, str(self.folder))
            sys.dont_write_bytecode = False  # the copy's, for the next run
            os.environ |= {"PYTHONPATH": str(self.folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
                del sys.modules[name]
            # The same examples each time; a failure need not be made small.
            phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
            hypothesis.settings.register_profile(
                "mutants", derandomize=True, database=None, deadline=None, phases=phases
            )
            hypothesis.settings.load_profile("mutants")
            options = [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "--tb=line",
                "-o",
                "addopts=",
                f"--basetemp={self.folder / 'tmp'}",
            ]
            code = pytest.main([*options, *tests], plugins=list(plugins))
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(int(code))


def _exit_code(child: int, deadline: float) -> int:
    """Of a child, once it and all that it started have ended; negative if it had to be stopped."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            break
        time.sleep(_SLEEP)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
