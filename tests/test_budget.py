"""The product does not grow: `tests/budget.toml` holds its weight, and `tests/features.toml` says what it is for."""

import re
import shutil
import subprocess
from pathlib import Path

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


def test_every_room_keeps_to_its_budget():
    """A room that grows takes its lines from another one; after taking out: python -m tests.budget --lower."""
    assert CEILINGS["rooms"].keys() == WEIGHTS.keys()
    found = {room: unlike(weight._asdict(), CEILINGS["rooms"][room]) for room, weight in WEIGHTS.items()}
    assert {room: figures for room, figures in found.items() if figures} == {}


def test_all_rooms_together_keep_to_the_total():
    assert unlike(TOTAL._asdict(), CEILINGS["total"]) == {}


def test_the_budgets_of_the_rooms_are_no_larger_than_the_total():
    for figure in budget.Weight._fields:
        assert sum(room[figure] for room in CEILINGS["rooms"].values()) <= CEILINGS["total"][figure], figure


def test_counted_shapes_only_become_fewer():
    assert unlike(budget.counters(), CEILINGS["counters"]) == {}


def test_each_module_belongs_to_one_feature():
    assert {name_of(path): found for path in HOUSE if len(found := budget.feature_of(path)) != 1} == {}


def test_each_entry_of_a_feature_names_a_module_or_a_folder():
    product = ROOT / "fedprivacy"
    places = [where for places in budget.features().values() for where in places]
    assert len(places) == len(set(places))
    assert [where for where in places if not (product / where).exists()] == []
    empty = {name for name in budget.features() if not any(budget.feature_of(path) == [name] for path in HOUSE)}
    assert empty == set()


@pytest.mark.exhaustive
def test_the_table_has_a_line_for_each_room_on_a_terminal_of_80_columns():
    lines = list(budget.table())
    assert [line.split()[0] for line in lines[1 : len(WEIGHTS) + 2]] == [*WEIGHTS, "total"]
    assert max(map(len, lines)) <= 80


def git(*arguments, at=ROOT):
    return subprocess.run(["git", *arguments], cwd=at, check=True, capture_output=True, text=True).stdout


def raising(at):
    """The commits that raise a figure of the total, the newest first; none of a folder without history."""
    own = "tests/budget.toml"
    for commit in git("log", "--no-merges", "--format=%H", "--", own, at=at).split():
        if own in git("show", "--format=", "--name-only", "--diff-filter=M", commit, at=at).split():
            before, after = (totals(git("show", f"{one}:{own}", at=at)) for one in (f"{commit}^", commit))
            if any(after[figure] > before[figure] for figure in before):
                yield commit


def totals(text):
    (section,) = re.findall(r"^\[total\]\n((?:\w+ = \d+\n)+)", text, re.M)
    return {name: int(count) for name, count in re.findall(r"(\w+) = (\d+)", section)}


def lonely_and_explained(commit, at):
    files = git("show", "--format=", "--name-only", commit, at=at).split()
    return files == ["tests/budget.toml"] and bool(git("show", "--no-patch", "--format=%b", commit, at=at).strip())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a copy without history has nothing to look at")
def test_the_total_rises_only_in_a_commit_of_its_own_that_says_why():
    assert [commit for commit in raising(ROOT) if not lonely_and_explained(commit, ROOT)] == []
    now, before = totals(budget.FILE.read_text()), totals(git("show", "HEAD:tests/budget.toml"))
    if any(now[figure] > before[figure] for figure in before):  # about to be committed
        assert git("diff", "--name-only", "HEAD").split() == ["tests/budget.toml"]


@pytest.mark.parametrize(
    ("beside", "body", "fine"),
    [("", "Trees need 900 lines.", True), ("", "", False), ("fedprivacy.py", "Trees need 900 lines.", False)],
)
def test_a_rise_beside_other_changes_or_without_a_reason_is_found(tmp_path, beside, body, fine):
    own = tmp_path / "tests" / "budget.toml"
    own.parent.mkdir()
    git("init", "--quiet", at=tmp_path)
    for lines, message in ((900, "Begin"), (1800, f"Raise the total\n\n{body}"), (1000, "Lower the total")):
        own.write_text(f"[total]\nlines = {lines}\n")
        if beside and lines == 1800:
            (tmp_path / beside).touch()
        git("add", ".", at=tmp_path)
        git("-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", message, at=tmp_path)
    (raised,) = raising(tmp_path)
    assert lonely_and_explained(raised, tmp_path) is fine


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Budgets that may be changed."""
    monkeypatch.setattr(budget, "FILE", Path(shutil.copy(budget.FILE, tmp_path)))
    return budget.FILE


def test_ceilings_come_down_and_never_go_up(copied):
    text = copied.read_text()
    copied.write_text(text.replace(f"lines = {CEILINGS['total']['lines']}", "lines = 999999", 1))
    budget.lower()
    assert budget.budget()["total"]["lines"] == TOTAL.lines
    low = {room: dict.fromkeys(each, 1) for room, each in CEILINGS["rooms"].items()}
    copied.write_text(
        "[total]\nlines = 1\n[counters]\nfeatures = 1\n" + "".join(f"[rooms.{room}]\nlines = 1\n" for room in low)
    )
    budget.lower()
    assert budget.budget()["total"]["lines"] == budget.budget()["rooms"]["ledger"]["lines"] == 1
    assert budget.budget()["counters"]["features"] == 1
