"""The guard of an earlier version is brought over whole: no charge is left behind for want of a budget."""

import sqlite3

import pytest

from fedprivacy.guard import Guard
from fedprivacy.guard.adoption import adopt
from fedprivacy.guard.errors import LogDamagedError, RelationChangedError, UnitChangedError
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import Unit

SCHEMA = """
CREATE TABLE budgets (dataset_id TEXT, epsilon REAL, delta REAL, filter TEXT);
CREATE TABLE charges (charge_id INTEGER PRIMARY KEY, dataset_id TEXT, run_id TEXT, round INTEGER, attempt INTEGER,
                      sampling_rate REAL, noise_multiplier REAL, relation TEXT, view TEXT, steps INTEGER, state TEXT);
"""
EVENT = PoissonSampledGaussian(0.25, 2.0, NeighbouringRelation.ZERO_OUT)


@pytest.fixture
def old(tmp_path):
    """An old guard with charges of two datasets, of which one has a budget."""
    file = tmp_path / "before" / "odometer.db"
    file.parent.mkdir()
    with sqlite3.connect(file) as connection:
        connection.executescript(SCHEMA)
        connection.execute("INSERT INTO budgets VALUES ('known', 3.0, 0.0001, 'fixed-mechanism')")
        for number, (dataset, state) in enumerate(
            [("known", "committed"), ("unknown", "committed"), ("unknown", "reserved"), ("known", "void")], start=1
        ):
            row = (number, dataset, f"run-{dataset}", number, 0, 0.25, 2.0, "zero-out", "server", number, state)
            connection.execute(f"INSERT INTO charges VALUES ({','.join('?' * len(row))})", row)
    return file


def test_every_charge_that_stands_comes_over_with_a_budget_or_without(old, tmp_path):
    assert adopt(old, tmp_path / "guard.log") == 3
    guard = Guard(tmp_path / "guard.log", PrivacyBudget(3.0, 1e-4))
    assert guard.history() == {EVENT: 1 + 2 + 3}
    assert guard.by_run() == {"run-known": {EVENT: 1}, "run-unknown": {EVENT: 5}}
    budgets = [charge.allowance.budget for charge in guard.charges()]
    assert budgets[0] == PrivacyBudget(3.0, 1e-4) and not budgets[1].enforced and not budgets[2].enforced
    assert not old.exists() and old.with_name("odometer.db.adopted").exists()


def test_an_import_changes_no_filter_and_loses_no_charge_of_another_data_set(old, tmp_path):
    with sqlite3.connect(old) as connection:
        row = (9, "unknown", "run-known", 1, 0, 0.25, 2.0, "zero-out", "server", 500, "committed")  # under one attempt
        connection.execute(f"INSERT INTO charges VALUES ({','.join('?' * len(row))})", row)
    guard = Guard(tmp_path / "guard.log", PrivacyBudget(3.0, 1e-4), "adaptive")
    guard.charge(Attempt("before", 1), EVENT, 7)
    copy = old.read_bytes()
    for _ in range(2):
        old.write_bytes(copy)
        adopt(old, tmp_path / "guard.log")
    assert guard.history() == {EVENT: 7 + 1 + 2 + 3 + 500}
    assert {charge.allowance.filter for charge in guard.charges()} == {"adaptive"}


def test_two_old_guards_with_the_same_attempts_are_both_counted(old, tmp_path):
    other = tmp_path / "another.db"
    other.write_bytes(old.read_bytes())
    with sqlite3.connect(other) as connection:
        connection.execute("UPDATE charges SET steps = steps + 10 WHERE charge_id = 1")
    assert (adopt(old, tmp_path / "guard.log"), adopt(other, tmp_path / "guard.log")) == (3, 3)
    assert Guard(tmp_path / "guard.log", PrivacyBudget(3.0, 1e-4)).history() == {EVENT: 6 + 16}


def test_charges_for_another_relation_are_refused_before_one_is_written(old, tmp_path):
    guard = Guard(tmp_path / "guard.log", PrivacyBudget(3.0, 1e-4))
    guard.promise(NeighbouringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(RelationChangedError, match="promises add-or-remove-one"):
        adopt(old, tmp_path / "guard.log")
    assert guard.history() == {} and old.exists()


def test_charges_of_a_version_that_knew_rows_alone_are_not_brought_to_an_account_of_persons(old, tmp_path):
    guard = Guard(tmp_path / "guard.log", PrivacyBudget(3.0, 1e-4), unit=Unit("patient", 8))
    guard.promise(EVENT.relation)
    with pytest.raises(UnitChangedError, match=r"promises .* 'patient \(at most 8 rows\)', and the task's is 'record'"):
        adopt(old, tmp_path / "guard.log")
    assert guard.history() == {} and old.exists()


def test_an_earlier_version_s_guard_is_not_brought_into_a_log_that_has_forgotten(old, file):
    guard = Guard(file, PrivacyBudget(3.0, 1e-4))
    guard.charge(Attempt("run", 1), EVENT, 1)
    guard.seal(Attempt("run", 1), b"update")
    file.unlink()
    with pytest.raises(LogDamagedError, match="is gone, but"):
        adopt(old, file)
