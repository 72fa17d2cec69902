"""A run of the tests fails for what it leaves behind, and not for what it clears away, nor for caches."""

import os
import subprocess
import sys

import pytest

from tests.house import ROOT

LEFT = {
    "an ignored file": (
        "from pathlib import Path\ndef test_it(): Path('runs').mkdir(); Path('runs/one').write_text('')",
        "a file in the checkout: runs/one",
    ),
    "an older file, written anew": (
        "from pathlib import Path\ndef test_it(): Path('notes').write_text('2')",
        "a file in the checkout: notes",
    ),
    "a temporary file": (
        "import tempfile\ndef test_it(): tempfile.mkstemp(prefix='mine-')",
        "a temporary file: mine-",
    ),
    "a temporary file of a process": (
        "import subprocess, sys\n"
        "def test_it(): subprocess.run([sys.executable, '-c', 'import tempfile; tempfile.mkdtemp(prefix=\"its-\")'])",
        "a temporary file: its-",
    ),
    "a process": (
        "import subprocess\ndef test_it(): subprocess.Popen(['sleep', '4'], start_new_session=True)",
        "a process: sleep 4",
    ),
}

CLEAN = """
import subprocess, tempfile
from pathlib import Path

def test_it(tmp_path):
    (tmp_path / "file").write_text("")  # pytest keeps it for three runs
    Path("runs").write_text("")
    Path("runs").unlink()
    Path(tempfile.gettempdir(), "ray").mkdir()
    with tempfile.TemporaryFile():
        subprocess.run(["sleep", "0.01"], check=True)
    Path(".ruff_cache").mkdir()
    Path(".ruff_cache/entry").write_text("")
"""


def outcome_of(test, folder, *options):
    """The exit code and the output of pytest for this test in a checkout of its own, whose git ignores runs."""
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / ".gitignore").write_text("runs\n")
    (folder / "notes").write_text("1")
    (folder / "test_it.py").write_text(test)
    (folder / "conftest.py").write_text("from tests import leftovers\nleftovers.PATIENCE = 1.0\n")
    outer = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")
    own = {name: value for name, value in os.environ.items() if name not in outer} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.leftovers", "-p", "no:cacheprovider", *options, "."]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "what", ["a process", *(pytest.param(what, marks=pytest.mark.exhaustive) for what in LEFT if what != "a process")]
)
def test_what_is_left_behind_fails_the_run(what, tmp_path):
    test, words = LEFT[what]
    code, told = outcome_of(test, tmp_path / "checkout")
    assert code == 1 and "1 passed" in told and words in told, told


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_run_that_clears_up_passes(processes, tmp_path):
    code, told = outcome_of(CLEAN, tmp_path / "checkout", "--numprocesses", str(processes))
    assert code == 0 and "leave behind" not in told, told
