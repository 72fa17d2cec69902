"""Every promise has a quick witness and an exhaustive one, and lanes and slices are what they say."""

import importlib
import re

import pytest

from tests.house import ROOT, promises

NO_SETTING = "the tests notice when one of these breaks"
"""The promise of the suite itself: its exhaustive witness is a command."""

FEW = """
import pytest
from hypothesis import given, strategies

def test_quick(): pass

@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_seeds(seed): pass

@pytest.mark.exhaustive
def test_exhaustive(): pass

@given(strategies.integers())
def test_generated(number): pass
"""


def lanes(witness):
    """The lanes in which a file or a test proves something."""
    file, _, name = witness.partition("::")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    names = [name] if name else [name for name in vars(module) if name.startswith("test_")]
    marked = {mark.name for mark in listed(module)}
    cases = [marked | case for name in names for case in cases_of(getattr(module, name))]
    return {"full": any("soak" not in case for case in cases), "quick": any(not case & MARKS for case in cases)}


MARKS = {"soak", "exhaustive"}


def listed(marked):
    marks = getattr(marked, "pytestmark", [])
    return marks if isinstance(marks, list) else [marks]


def cases_of(test):
    """The names of the marks of each case, of which a parametrised test has several."""
    cases = [{mark.name for mark in listed(test)}]
    for mark in listed(test):
        if mark.name == "parametrize":
            given = [{each.name for each in getattr(values, "marks", ())} for values in mark.args[1]]
            cases = [case | more for case in cases for more in given]
    return cases


@pytest.mark.parametrize(("promise", "quick", "exhaustive"), promises(), ids=[promise for promise, *_ in promises()])
def test_every_promise_has_a_quick_and_an_exhaustive_witness(promise, quick, exhaustive):
    assert quick, f"no quick witness is named for: {promise}"
    assert exhaustive or promise == NO_SETTING, f"no exhaustive witness is named for: {promise}"
    assert [witness for witness in quick if not lanes(witness)["quick"]] == []
    assert [witness for witness in exhaustive if not lanes(witness)["full"]] == []


def test_a_witness_of_another_lane_is_noticed():
    assert lanes("tests/test_lanes.py") == {"full": True, "quick": True}
    assert lanes("tests/test_lanes.py::for_soak") == {"full": False, "quick": False}
    assert lanes("tests/test_lanes.py::for_full") == {"full": True, "quick": False}


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.soak)])
def for_soak(seed): ...


@pytest.mark.exhaustive
def for_full(): ...


def collected(folder, *options):
    """The tests of a small file that run with these options."""

    class Seen:
        def pytest_collection_finish(self, session):
            self.names = {item.name for item in session.items}

    file, seen = folder / "test_few.py", Seen()
    file.write_text(FEW)
    alone = (f"--rootdir={folder}", "--noconftest", "--import-mode=importlib", "--hypothesis-profile=suite")
    pytest.main(["-p", "tests.lanes", "--collect-only", "--quiet", *alone, *options, str(file)], plugins=[seen])
    return seen.names


def test_the_tests_that_the_makefile_and_the_ci_run_by_name_are_there():
    text = "".join((ROOT / name).read_text() for name in ("Makefile", ".ci/run")).replace("\\\n", " ")
    lists = re.findall(r"\(addprefix (tests/\S+?),([^)]*)\)", text)
    named = {
        *re.findall(r"\btests/[\w/]+\.py", text),
        *(start + each for start, names in lists for each in names.split()),
    }
    assert len(named) > 20 and [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.exhaustive
def test_each_lane_runs_what_it_says_and_slices_are_a_partition(tmp_path):
    everything = {"test_quick", "test_seeds[1]", "test_seeds[2]", "test_exhaustive", "test_generated"}
    assert collected(tmp_path) == everything
    assert collected(tmp_path, "--lane=quick") == {"test_quick", "test_seeds[1]", "test_generated"}
    assert collected(tmp_path, "--lane=full") == everything - {"test_seeds[2]"}
    assert collected(tmp_path, "--lane=soak") == {"test_seeds[2]", "test_generated"}
    parts = [collected(tmp_path, f"--slice={part}/3") for part in (1, 2, 3)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 5 > max(map(len, parts))


EIGHT = (
    "import random, pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_it(n): print('drawn', n, random.random())"
)


def test_another_order_has_other_random_numbers(tmp_path, capsys):
    (tmp_path / "test_eight.py").write_text(EIGHT)

    def drawn(*order):
        pytest.main(["-p", "tests.lanes", "-s", "-q", f"--rootdir={tmp_path}", "--noconftest", *order, str(tmp_path)])
        return [line.split("drawn ")[1].split() for line in capsys.readouterr().out.splitlines() if "drawn" in line]

    usual, other = drawn(), drawn("--order=7")
    assert [n for n, _ in usual] == sorted(n for n, _ in other) == list("01234567") != [n for n, _ in other]
    assert dict(usual).items().isdisjoint(dict(other).items())
    assert usual == drawn() and other == drawn("--order=7")
