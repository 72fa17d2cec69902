"""Every act is one entry, chained to the one before; no entry may stand that contradicts the others."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fedprivacy.ledger import ChargeState, Ledger, LedgerError
from fedprivacy.ledger.journal import sign_head
from fedprivacy.ledger.replay import BrokenJournalError, Replay
from fedprivacy.values.attempt import Attempt
from tests.ledger.acts import ALLOWANCE, COUNT, EVENT, KEY, MEAN, copied, fill_and_ask, journal_of, query, unlimited


def test_entries_and_signed_heads_tell_one_time_in_every_time_zone(tmp_path, in_kathmandu):
    before, ledger = datetime.now(UTC), Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.open_run("one", "digits", "2 parts")
    ((_, entry, _),) = journal_of(ledger)
    for at in (json.loads(entry)["at"], sign_head(ledger.database, KEY).at):
        told = datetime.fromisoformat(at)
        assert told.utcoffset() == timedelta(0) and before <= told <= datetime.now(UTC)


def test_what_changes_nothing_is_no_entry(url, filled):
    filled.open_run("one", "digits", "2 parts")
    filled.bind_keys({"hospital-0": "bb"})
    filled.open_budgets({"a": ALLOWANCE, "b": ALLOWANCE})
    filled.settle(Attempt("one", 1), ["a"], ChargeState.COMMITTED)
    filled.settle(Attempt("one", 1), ["a"], ChargeState.VOID)
    filled.reconcile("a", {("one", EVENT): 9})
    filled.reserve(Attempt("two", 2), EVENT, {"a": 5}, lambda *_: 0)
    filled.reserve(Attempt("two", 1, 3), EVENT, {"a": 1, "b": 2}, unlimited, resumed=True)
    Ledger(url).close()
    assert len(journal_of(filled)) == 12


@pytest.mark.parametrize("table", ["journal", "checkpoints", "questions", "answers"])
def test_the_database_refuses_to_change_delete_or_empty(transactional_url, table):
    ledger = copied(fill_and_ask, transactional_url)
    before = query(ledger, f"SELECT * FROM {table}")
    acts = [f"UPDATE {table} SET number = 5", f"DELETE FROM {table}"]
    if transactional_url.startswith("postgresql"):
        acts.append(f"TRUNCATE {table} CASCADE")
    for act in acts:
        with pytest.raises((DBAPIError, LedgerError), match="is append-only"):
            ledger.database.write(lambda connection, _, act=act: connection.execute(text(act)))
    assert query(ledger, f"SELECT * FROM {table}") == before
    ledger.close()


CHARGE = {"kind": "charge", "run_id": "one", "round": 1, "attempt": 1, "view": "server"}
CHARGE |= {"events": [[0.1, 1.0, "add-or-remove-one"]], "charges": {"a": [0, 5]}}
SETTLEMENT = {"kind": "settlement", "run_id": "one", "round": 1, "attempt": 1, "state": "void", "receipts": {"a": ""}}
RECONCILIATION = {"kind": "reconciliation", "dataset_id": "a", "run_id": "one", "attempt": 1, "view": "server"}
RECONCILIATION |= {"event": [0.1, 1.0, "add-or-remove-one"], "client_steps": 9, "server_steps": 5}
ASKED = {"run_id": "questions-1", "round": 1, "attempt": 1}
ANSWER = {"kind": "answer", "at": "2026-11-22T08:00:00+00:00", **ASKED}
ANSWER |= {"questions": [[0, COUNT, 20.0]], "answers": {"a": [[0, "00" * 32]]}}


@pytest.fixture
def replay():
    """A run that charged a dataset, and questions to three: one charge is committed, one void, one reserved."""
    replay = Replay()
    run = {"run_id": "one", "dataset": "digits", "partition": "2 parts", "unit": "record", "software": ["", ""]}
    replay.enter(1, {"kind": "run"} | run)
    replay.enter(2, {"kind": "budget", "budgets": {d: [3.0, 1e-5, "adaptive", None] for d in "abc"}})
    replay.enter(3, CHARGE)
    events, charges = [[1.0, 20.0, "add-or-remove-one"]], {"a": [0, 1], "b": [0, 1], "c": [0, 1]}
    replay.enter(4, CHARGE | ASKED | {"events": events, "charges": charges})
    replay.enter(5, {"kind": "settlement", **ASKED, "state": "committed", "receipts": {"a": None}})
    replay.enter(6, {"kind": "settlement", **ASKED, "state": "void", "receipts": {"b": None}})
    return replay


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"kind": "run", "run_id": "one", "dataset": "cancer", "partition": "1 part"}, "run one began before"),
        ({"kind": "wedding"}, "lacks 'wedding'"),
        (CHARGE, "a was charged before for round 1, attempt 1"),
        (CHARGE | {"round": 2, "charges": {"nobody": [0, 5]}}, "nobody has no budget"),
        (CHARGE | {"round": 2, "charges": {"a": [0, 0]}}, "a is charged 0 steps"),
        (CHARGE | {"round": 2, "charges": {"a": [0, -5]}}, "a is charged -5 steps"),
        (CHARGE | {"round": 2, "charges": {"a": [1, 5]}}, "index out of range"),
        (CHARGE | {"round": 2, "events": [[0.1, 1.0, "sideways"]]}, "sideways"),
        (SETTLEMENT | {"round": 2}, "lacks ChargeKey"),
        (SETTLEMENT | ASKED | {"state": "committed"}, "a committed charge of a cannot become committed"),
        (SETTLEMENT | {"state": "reserved"}, "a reserved charge of a cannot become reserved"),
        (RECONCILIATION | {"dataset_id": "nobody"}, "nobody has no budget"),
        (RECONCILIATION | {"client_steps": "many"}, "unsupported operand"),
        ({name: value for name, value in RECONCILIATION.items() if name != "view"}, "lacks 'view'"),
        (ANSWER | {"answers": {"b": [[0, "00"]]}}, "a void charge of b cannot have an answer"),
        (ANSWER | {"answers": {"c": [[0, "00"]]}}, "a reserved charge of c cannot have an answer"),
        (ANSWER | {"answers": {"d": [[0, "00"]]}}, "lacks ChargeKey(dataset_id='d'"),
        (ANSWER | {"answers": {"a": [[1, "00"]]}}, "index out of range"),
        ({name: value for name, value in ANSWER.items() if name != "at"}, "lacks 'at'"),
    ],
)
def test_an_entry_that_contradicts_those_before_is_named(replay, entry, problem):
    charges = dict(replay.charges)
    with pytest.raises(BrokenJournalError, match=f"entry 7 .*{re.escape(problem)}"):
        replay.enter(7, entry)
    assert replay.charges == charges


def test_what_was_answered_stays_answered_and_its_charge_committed(replay):
    replay.enter(7, ANSWER)
    with pytest.raises(BrokenJournalError, match=r"entry 8 .*a answered question 0 before"):
        replay.enter(8, ANSWER | {"answers": {"a": [[0, "11" * 32]]}})
    with pytest.raises(BrokenJournalError, match=r"entry 8 .*was another before"):
        replay.enter(8, ANSWER | {"questions": [[0, MEAN, 20.0]]})
    with pytest.raises(BrokenJournalError, match="a committed charge of a cannot become void"):
        replay.enter(8, {**ANSWER, "kind": "settlement", "state": "void", "receipts": {"a": None}})
