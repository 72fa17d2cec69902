"""A filter keeps one account from its first step to its last; another one begins another account."""

import pytest

from fedprivacy.commands.app import app
from fedprivacy.guard import Guard
from fedprivacy.guard.errors import GuardError, LogError
from fedprivacy.values.events import NeighbouringRelation
from tests.guard.account import BUDGET, EVENT, key, sealed_folder
from tests.terminal import CliRunner

ADAPTIVE = "adaptive"


@pytest.fixture
def charged(file):
    """An account that the usual filter keeps."""
    guard = Guard(file, BUDGET)
    guard.charge(key(1), EVENT, 3)
    guard.seal(key(1), b"update")
    return guard


def test_another_filter_in_the_middle_is_refused_and_nothing_is_charged(file, charged):
    changed = Guard(file, BUDGET, ADAPTIVE)
    with pytest.raises(LogError, match=r"filter = 'fixed-then-adaptive' again.*fedprivacy guard renew"):
        changed.charge(key(2), EVENT, 1)
    with pytest.raises(LogError, match="has been kept by 'fixed-then-adaptive' so far"):
        changed.check(EVENT.relation)
    assert (
        changed.history() == {EVENT: 3} and changed.sealed_update(key(1)) == b"update"
    )  # what was paid for is still sent
    Guard(file, BUDGET, "fixed-then-adaptive").charge(key(2), EVENT, 1)


def test_by_the_owner_s_command_another_account_begins_and_the_first_is_kept(file, charged):
    assert CliRunner().invoke(app, ["guard", "renew", str(file)], input="n\n").exit_code == 1
    assert Guard(file, BUDGET).history() == {EVENT: 3}
    done = CliRunner().invoke(app, ["guard", "renew", str(file)], input="y\n")
    assert done.exit_code == 0, done.output
    assert "epsilon 3" in done.output and "by the sum of both" in done.output
    aside = file.with_name(f"{file.name}.1")
    assert not file.exists() and Guard(aside, BUDGET).sealed_update(key(1)) == b"update"
    renewed = Guard(file, BUDGET, ADAPTIVE)
    renewed.charge(key(1), EVENT, 2)
    renewed.seal(key(1), b"another")
    assert renewed.history() == {EVENT: 2} and Guard(aside, BUDGET).history() == {EVENT: 3}
    assert sealed_folder(file) != sealed_folder(aside)
    assert CliRunner().invoke(app, ["guard", "renew", str(file), "--yes"]).exit_code == 0
    assert Guard(file.with_name(f"{file.name}.2"), BUDGET).history() == {EVENT: 2}


def test_an_account_without_a_charge_needs_no_other(file):
    Guard(file, BUDGET)
    done = CliRunner().invoke(app, ["guard", "renew", str(file), "--yes"])
    assert done.exit_code == 2 and "promised nothing yet" in done.output


def test_an_account_that_has_only_promised_a_relation_can_be_put_aside(file):
    Guard(file, BUDGET).promise(NeighbouringRelation.ZERO_OUT)
    private = Guard(file, BUDGET)
    with pytest.raises(LogError, match=r"promises zero-out.*fedprivacy guard renew"):
        private.check(NeighbouringRelation.ADD_OR_REMOVE_ONE)
    done = CliRunner().invoke(app, ["guard", "renew", str(file), "--yes"])
    assert done.exit_code == 0 and "zero-out relation" in done.output and "stays known" in " ".join(done.output.split())
    Guard(file, BUDGET).promise(NeighbouringRelation.ADD_OR_REMOVE_ONE)


def test_whoever_had_the_old_account_open_charges_nothing_to_the_new_one(file, charged):
    CliRunner().invoke(app, ["guard", "renew", str(file), "--yes"])
    Guard(file, BUDGET)
    with pytest.raises(GuardError):
        charged.charge(key(2), EVENT, 1)
    assert Guard(file, BUDGET).history() == {}
