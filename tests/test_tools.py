"""The tests' own tools: a run fails for what it leaves behind and for its length, and tests are valued by evidence."""

import inspect
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedprivacy.values.cell_text import canonical
from tests import pace
from tests.house import ROOT
from tests.reached import Suite
from tests.value import alone, branches, cover

LEFT = {
    "a process": (
        "import subprocess\ndef test_it(): subprocess.Popen(['sleep', '20'], start_new_session=True)",
        "a process: sleep 20",
    ),
    "an ignored file": (
        "from pathlib import Path\ndef test_it(): Path('runs').mkdir(); Path('runs/one').write_text('')",
        "a file in the checkout: runs/one",
    ),
    "a temporary file of a process": (
        "import subprocess, sys\n"
        "def test_it(): subprocess.run([sys.executable, '-c', 'import tempfile; tempfile.mkdtemp(prefix=\"its-\")'])",
        "a temporary file: its-",
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
    (folder / "test_it.py").write_text(test)
    (folder / "conftest.py").write_text("from tests import leftovers\nleftovers.PATIENCE = 1.0\n")
    outer = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")
    own = {name: value for name, value in os.environ.items() if name not in outer} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.leftovers", "-p", "no:cacheprovider", *options, "."]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what == "a process" else pytest.mark.exhaustive) for what in LEFT]
)
def test_what_is_left_behind_fails_the_run(what, tmp_path):
    test, words = LEFT[what]
    code, told = outcome_of(test, tmp_path / "checkout")
    assert code == 1 and "1 passed" in told and words in told, told


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_run_that_clears_up_passes(processes, tmp_path):
    code, told = outcome_of(CLEAN, tmp_path / "checkout", "--numprocesses", str(processes))
    assert code == 0 and "leave behind" not in told, told


@pytest.mark.parametrize(
    ("seconds", "unit", "fails", "says"),
    [
        (230, 2.4, False, "quick: 230 s, 96 units of 100: within its budget"),
        (290, 2.4, False, "quick: 290 s, 121 units of 100: above its budget by 21%"),
        (310, 2.4, True, "quick: 310 s, 129 units of 100: above its budget by 29%"),
        (310, 3.2, False, "quick: 310 s, 97 units of 100: within its budget"),
    ],
)
def test_a_budget_counts_units_of_the_machine(seconds, unit, fails, says, monkeypatch):
    monkeypatch.setattr(pace, "BUDGETS", {"quick": 100})
    failed, line = pace.judge("quick", seconds, unit)
    assert failed is fails and line.startswith(says) and f"A unit is {unit:.2f} s" in line


@pytest.mark.parametrize(("units", "code"), [((1e-6, 1e-6), 1), ((1e-6, 1e3), 0)])
def test_the_last_line_of_a_run_says_how_long_it_took(units, code, tmp_path, capsys, monkeypatch):
    measured = iter(units)
    monkeypatch.setattr(pace, "unit", lambda: next(measured))
    (tmp_path / "test_timed.py").write_text("def test_it(): pass")
    outer = (f"--rootdir={tmp_path}", "--noconftest", "--import-mode=importlib", "--quiet")
    assert pytest.main(["-p", "tests.pace", *outer, "--budget=quick", str(tmp_path)]) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith("quick: 0 s, ")


def test_the_cheapest_tests_that_show_everything_are_chosen():
    def suite(**seconds):
        return SimpleNamespace(tests={name: SimpleNamespace(seconds=took) for name, took in seconds.items()})

    things = {"dear": {"a", "b", "c"}, "cheap": {"a", "b"}, "small": {"c"}, "same": {"c"}, "none": set()}
    chosen = cover(suite(dear=10.0, cheap=0.1, small=0.2, same=0.3, none=0.0), things)
    assert chosen == {"cheap": 2, "small": 1}
    assert cover(suite(dear=0.1, cheap=0.1, small=0.2, same=0.3, none=0.0), things) == {"dear": 3}
    things = {"one": {"a"}, "two": {"a"}, "three": set()}
    taken = {"one": np.array([0, 1]), "two": np.array([0, 1, 2, 3]), "three": np.array([4])}
    assert cover(suite(one=1.0, two=1.0, three=1.0), things, taken) == {"two": 5, "three": 1}


def test_what_a_test_alone_shows():
    things = {"one": {("guarantee", "a"), ("figure", "b")}, "two": {("guarantee", "a"), ("promise", "p")}}
    taken = {"one": np.array([0, 1]), "two": np.array([1, 2, 4])}
    assert alone(things, taken) == {"one": (1, 1), "two": (0, 2)}
    arcs = [("f", -1, 2), ("f", 2, 3), ("f", 2, 5), ("f", 3, 5), ("g", 2, 3)]
    assert branches(arcs).tolist() == [0, 1, 2]  # the entry of a function, and two ways on


TWO = """
from fedprivacy.values.cell_text import canonical

def test_one(): canonical("1,5", decimal=",")

def test_other(): pass
"""


@pytest.mark.exhaustive
def test_the_lines_that_a_test_reaches_are_measured(tmp_path):
    (tmp_path / "test_two.py").write_text(TWO)
    outer = (f"--rootdir={tmp_path}", "--noconftest", "-p", "tests.times", "-p", "tests.reached")
    measured = (f"--reached={tmp_path}", f"--times={tmp_path}", str(tmp_path))
    subprocess.run([sys.executable, "-m", "pytest", *outer, *measured], check=True, cwd=ROOT)
    lines = range(*(inspect.getsourcelines(canonical)[1] + more for more in (1, 30)))
    found = Suite(tmp_path).reaching([("fedprivacy/values/cell_text.py", lines)], 1.0)
    assert [name.partition("::")[2] for name in found] == ["test_one"]
