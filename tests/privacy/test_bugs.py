"""Planted bugs are in today's code, and so is everything that they name. `make mutants` plants them."""

import ast
import re

import pytest

from tests.privacy import audited_tasks
from tests.privacy.bugs import BUGS
from tests.privacy.bugs.bug import FIGURE, Change
from tests.privacy.bugs.planting import ROOT, changed, source_of


def test_every_bug_is_found_in_today_s_code_and_can_be_compiled():
    gone = []
    for bug in BUGS:
        try:
            for name, code in changed(bug.changes).items():
                assert isinstance(code, str) or compile(code, name, "exec")
        except LookupError as error:
            gone.append(f"{bug.meaning}: {error}")
    assert not gone, "\n\n".join(gone)


def test_every_meaning_is_told_once():
    meanings = [bug.meaning for bug in BUGS]
    assert len(set(meanings)) == len(meanings)


def test_every_promise_of_the_architecture_has_a_bug_and_no_bug_breaks_anything_else():
    text = (ROOT / "docs/explanation/architecture.md").read_text().partition("## Where each guarantee is kept")[2]
    rows = [line.split("|")[1].strip() for line in text.partition("\n\nWhy")[0].splitlines() if line.startswith("|")]
    promised = set(rows[2:]) - {"the tests notice when one of these breaks"}
    assert {bug.breaks for bug in BUGS} - {FIGURE} == promised


def test_somebody_is_there_to_notice_each_bug():
    for bug in BUGS:
        assert bug.tests or bug.gates, bug.meaning
        assert set(bug.gates) <= audited_tasks.GATES.keys() and hasattr(audited_tasks, bug.task), bug.meaning
    for test in {test.partition("[")[0] for bug in BUGS for test in bug.tests}:
        file, _, name = test.partition("::")
        assert re.search(rf"^ *def {name.rpartition('::')[2]}\(", (ROOT / file).read_text(), re.MULTILINE), test


# Where a change is found

MODULE = "fedprivacy.flower.client.local"


def found(old, new="pass", name="LocalClient.charge"):
    (tree,) = changed([Change(f"{MODULE}:{name}", old, new)]).values()
    return ast.unparse(tree)


def test_a_change_is_found_however_it_is_written():
    grant = "self.guard.charge"
    assert grant in ast.unparse(ast.parse(source_of(MODULE).read_text()))
    assert grant not in found("if (self.guard  is not\\\n None): ...  # as long as it is")
    assert "if self.seed is not None" in found("self.seed is None", "self.seed is not None", "LocalClient.keystream")
    moved = found("if self.guard is not None:\n    ...", "...\nif self.guard is not None: pass")
    assert moved.index(grant) < moved.index("if self.guard is not None:\n            pass")


@pytest.mark.parametrize(
    ("old", "name", "times"),
    [
        ("self.guard is None", "LocalClient.charge", 0),
        ("self.guard is not None", "LocalClient.discharge", 0),
        ("self.guard", "LocalClient.charge", 2),
    ],
)
def test_code_that_is_not_there_once_is_an_error_that_says_where(old, name, times):
    with pytest.raises(LookupError, match=rf"{MODULE}:{name} holds this {times} times, not once:\s+{old}"):
        found(old, "True", name)
