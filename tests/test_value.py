"""Tests are chosen by what they alone show, and by what they cost."""

import inspect
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedprivacy.values.cell_text import canonical
from tests.house import ROOT
from tests.reached import Suite
from tests.value import alone, branches, cover

TWO = """
from fedprivacy.values.cell_text import canonical

def test_one(): canonical("1,5", decimal=",")

def test_other(): pass
"""


def suite(**seconds):
    return SimpleNamespace(tests={name: SimpleNamespace(seconds=took) for name, took in seconds.items()})


def test_the_cheapest_tests_that_show_everything_are_chosen():
    things = {"dear": {"a", "b", "c"}, "cheap": {"a", "b"}, "small": {"c"}, "same": {"c"}, "none": set()}
    chosen = cover(suite(dear=10.0, cheap=0.1, small=0.2, same=0.3, none=0.0), things)
    assert chosen == {"cheap": 2, "small": 1}
    assert cover(suite(dear=0.1, cheap=0.1, small=0.2, same=0.3, none=0.0), things) == {"dear": 3}


def test_branches_count_beside_bugs():
    things = {"one": {"a"}, "two": {"a"}, "three": set()}
    taken = {"one": np.array([0, 1]), "two": np.array([0, 1, 2, 3]), "three": np.array([4])}
    assert cover(suite(one=1.0, two=1.0, three=1.0), things, taken) == {"two": 5, "three": 1}


def test_what_a_test_alone_shows():
    things = {
        "one": {("guarantee", "a"), ("figure", "b")},
        "two": {("guarantee", "a"), ("promise", "p")},
        "three": set(),
    }
    taken = {"one": np.array([0, 1]), "two": np.array([1, 2, 4]), "three": np.array([], int)}
    assert alone(things, taken) == {"one": (1, 1), "two": (0, 2), "three": (0, 0)}


def test_a_branch_is_one_of_several_ways_on_or_the_entry_of_a_function():
    arcs = [("f", -1, 2), ("f", 2, 3), ("f", 2, 5), ("f", 3, 5), ("g", 2, 3)]
    assert branches(arcs).tolist() == [0, 1, 2]


@pytest.mark.exhaustive
def test_the_lines_that_a_test_reaches_are_measured(tmp_path):
    (tmp_path / "test_two.py").write_text(TWO)
    alone = (f"--rootdir={tmp_path}", "--noconftest", "-p", "tests.times", "-p", "tests.reached")
    measured = (f"--reached={tmp_path}", f"--times={tmp_path}", str(tmp_path))
    subprocess.run([sys.executable, "-m", "pytest", *alone, *measured], check=True, cwd=ROOT)
    lines = range(*(inspect.getsourcelines(canonical)[1] + more for more in (1, 30)))
    found = Suite(tmp_path).reaching([("fedprivacy/values/cell_text.py", lines)], 1.0)
    assert [name.partition("::")[2] for name in found] == ["test_one"]
