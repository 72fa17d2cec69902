"""Leftovers of a run of the tests: a plugin of pytest that looks for them at the end, and fails the run for them.

Looked at are three places:

- **the checkout**: files that git does not track and that were written during the run, ignored ones included. Caches
  do not count. What is left in `runs/` would be shown by the next dashboard beside the user's own runs.
- **the folder for temporary files**: the tests and what they start get one of their own, which must be empty at the
  end. pytest's own folder, in which the files of the last three runs stay by design, is elsewhere, and so are the
  kernels that torch has compiled, which are a cache.
- **processes**: each that a test started carries a mark of the run in its environment; none may be alive at the end.
  Only Linux shows a process's environment.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import pytest

MARK = "FEDPRIVACY_TEST_RUN"
"""The environment variable by which a run knows its processes."""

CACHES = ("__pycache__/", ".*_cache/", ".hypothesis/", ".venv/", "build/", "*.egg-info/")
"""Folders in a checkout that tools keep from run to run; `make` writes what it builds and measures into `build`."""

PATIENCE = 20.0
"""Seconds in which a process that was told to end may still be there: Ray's helpers give up after 15."""

UNCLEARED = ("ray", "wandb-media", "wandb-artifacts")
"""Ends of the names of temporary folders that go with the run's own: Ray keeps the logs of its nodes for ever, and W&B
two folders until the process ends that has imported it."""


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # a worker of xdist looks at nothing: others are still at work
        config.pluginmanager.register(Leftovers(config.rootpath))


class Leftovers:
    """The places that a run may leave something in, as they were before it."""

    def __init__(self, checkout):
        self._checkout = checkout
        self._files = self._untracked()
        self._name = uuid4().hex
        os.environ[MARK] = self._name
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "fedprivacy-tests-inductor"))
        self._temporary = Path(tempfile.mkdtemp(prefix="t-"))  # a short name: paths of sockets have 107 bytes
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._temporary)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session):
        """Look once all others have tidied up: xdist ends its workers in this hook."""
        result = yield
        left = [
            *(f"a file in the checkout: {name}" for name, _ in sorted(self._untracked().items() - self._files.items())),
            *(f"a process: {words}" for words in self._processes()),
            *(
                f"a temporary file: {name}"
                for name in sorted(path.name for path in self._temporary.iterdir())
                if not name.endswith(UNCLEARED)
            ),
        ]
        shutil.rmtree(self._temporary, ignore_errors=True)
        if left:
            session.config.get_terminal_writer().line("\n    ".join(["\n\nThe tests leave behind", *left]), red=True)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        return result

    def _untracked(self):
        """Return the time of each untracked file's last change, by path; nothing outside of a git checkout."""
        command = ["git", "ls-files", "--others", "-z", *(f"--exclude={folder}" for folder in CACHES)]
        listed = subprocess.run(command, cwd=self._checkout, capture_output=True, text=True, check=False)
        names = [name for name in listed.stdout.split("\0") if (self._checkout / name).is_file()]
        return {name: (self._checkout / name).stat().st_mtime_ns for name in names}

    def _processes(self):
        """Return the command lines of processes that a test started and that are still alive."""
        deadline = time.monotonic() + PATIENCE
        time.sleep(0.2)  # for a moment after it begins, a process has no environment
        while (found := list(_marked(self._name))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def _marked(name):
    for place in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={name}".encode() in (place / "environ").read_bytes().split(b"\0")
            if marked and place.name != str(os.getpid()):
                yield (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
