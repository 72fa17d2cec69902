"""The product does not grow: `tests/budget.toml` holds its weight, and `tests/features.toml` says what it is for."""

import subprocess
import tomllib

import pytest

from tests import budget
from tests.house import HOUSE, ROOT, name_of

CEILINGS = budget.budget()
WEIGHTS = budget.rooms()
TOTAL = budget.Weight(*(sum(each) for each in zip(*WEIGHTS.values(), strict=True)))


def unlike(now, ceilings):
    """The figures above their ceiling, and those so far below it that it must come down."""
    return {
        name: f"{count} of {ceilings[name]}"
        for name, count in now.items()
        if not ceilings[name] * (1 - budget.SLACK) <= count <= ceilings[name]
    }


def test_what_there_is_keeps_to_its_ceilings():
    """A room that grows takes its lines from another one; after taking out: python -m tests.budget --lower."""
    assert CEILINGS["rooms"].keys() == WEIGHTS.keys()
    found = {room: unlike(weight._asdict(), CEILINGS["rooms"][room]) for room, weight in WEIGHTS.items()}
    found |= {"total": unlike(TOTAL._asdict(), CEILINGS["total"])}
    found |= {"counters": unlike(budget.counters(), CEILINGS["counters"])}
    assert {room: figures for room, figures in found.items() if figures} == {}
    for figure in budget.Weight._fields:
        assert sum(room[figure] for room in CEILINGS["rooms"].values()) <= CEILINGS["total"][figure], figure


def test_each_module_belongs_to_one_feature():
    assert {name_of(path): found for path in HOUSE if len(found := budget.feature_of(path)) != 1} == {}


def test_each_entry_of_a_feature_names_a_module_or_a_folder():
    product = ROOT / "fedprivacy"
    places = [where for places in budget.features().values() for where in places]
    assert len(places) == len(set(places))
    assert [where for where in places if not (product / where).exists()] == []
    empty = {name for name in budget.features() if not any(budget.feature_of(path) == [name] for path in HOUSE)}
    assert empty == set()


OWN = "tests/budget.toml"


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def total_of(version):
    return tomllib.loads(git("show", f"{version}:{OWN}"))["total"]


def rises(before, after):
    return any(after[figure] > before[figure] for figure in before)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a copy without history has nothing to look at")
def test_the_total_rises_only_in_a_commit_of_its_own_that_says_why():
    for commit in git("log", "--no-merges", "--diff-filter=M", "--format=%H", "--", OWN).split():
        if rises(total_of(f"{commit}^"), total_of(commit)):
            assert git("show", "--format=", "--name-only", commit).split() == [OWN], commit
            assert git("show", "--no-patch", "--format=%b", commit).strip(), commit
    if rises(total_of("HEAD"), CEILINGS["total"]):  # about to be committed
        assert git("diff", "--name-only", "HEAD").split() == [OWN]


def test_ceilings_come_down_and_never_go_up(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FILE", tmp_path / "budget.toml")
    budget.FILE.write_text("[total]\nlines = 999999\n[counters]\nfeatures = 1\n[rooms.ledger]\nlines = 1\n")
    budget.lower()
    lowered = budget.budget()
    assert lowered["total"]["lines"] == TOTAL.lines and lowered["rooms"].keys() == WEIGHTS.keys()
    assert lowered["rooms"]["ledger"]["lines"] == lowered["counters"]["features"] == 1
