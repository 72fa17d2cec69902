"""Audits of training code with the real Opacus: what is published fails, and says why; what is sound passes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedprivacy.audit.apps import audit_app, load_app
from tests.audit.apps.turns import check_named, in_turn
from tests.audit.apps.unsound import Bad

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "audit.md"
BAD = (
    Bad("CentralLimit", "accounting", "an accountant that estimates an epsilon and does not bound it"),
    Bad("SameForEverybody", "noise", "Two rounds add the same noise"),
    Bad("SharedGhost", "replay", r"clipped to 1\.\d+ times the clipping norm.*its norm is measured too small"),
)


@pytest.fixture(scope="module")
def apps():
    from tests.audit.apps import with_opacus

    return vars(with_opacus)


def reasons(app, seed=0):
    return {gate.name: " ".join(gate.reasons) for gate in audit_app(app, app.__name__, seed=seed).failed}


@pytest.mark.exhaustive
def test_the_published_example_fails_and_says_why(apps):
    why = reasons(apps["Published"])
    assert set(why) == {"release", "replay", "accounting"}
    assert "Each round begins with a new accountant, which has forgotten all rounds before" in why["accounting"]
    assert "The exact number of records left without noise: 'num-examples' is 48, and 47" in why["release"]
    assert "Sums are divided by the true number of records" in why["replay"]
    assert "With a record that is not a number in the shard, no numbers leave" in why["replay"]


@pytest.mark.parametrize(("bad", "seed"), in_turn(BAD))
def test_what_goes_wrong_is_named(apps, bad, seed):
    check_named(replace(bad, app=apps[bad.app]), seed)


@pytest.mark.exhaustive
def test_the_guide_s_adapter_works_as_it_is(tmp_path):
    (code,) = re.findall(r"```python\n(# private.py\n.*?)```", HOW_TO.read_text(), re.DOTALL)
    (tmp_path / "private.py").write_text(code)
    assert audit_app(load_app(f"{tmp_path / 'private.py'}:Private"), "private", seed=0).passed
