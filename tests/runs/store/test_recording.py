"""A recorded run is read back, on both databases, whatever happens in between."""

import math
from collections import Counter

import pytest
from sqlalchemy import Engine, event

from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.runs.records.store import ClientQuery, RunRecording, RunStore
from fedprivacy.runs.records.store.writer import record_audits
from fedprivacy.values.runs import AuditResult, RunStatus
from tests.dashboard.shown import record
from tests.runs.store.made_up import DELTA, facts, finished, growing, spent


@pytest.fixture
def store(url):
    Ledger(url).close()
    opened = RunStore(url)
    yield opened
    opened.close()


def test_rounds_clients_and_curves_are_read_back(store, url):
    records = growing(["a", "b", "c"], 12)
    record(url, facts(), records)
    (run,) = store.runs()
    assert run == store.run("run-1").now
    assert (run.facts, run.status, run.last) == (facts(), RunStatus.RUNNING, records[-1].point)
    assert store.run("run-1").points(range(13)) == [one.point for one in records]
    total, clients = store.run("run-1").clients(ClientQuery())
    assert total == 3
    assert [(c.client_id, c.spent.epsilon, c.averaged, c.spent.rounds) for c in clients] == [
        (name, records[-1].spent[name].epsilon, 12, records[-1].spent[name].rounds) for name in ("c", "b", "a")
    ]
    curves = store.run("run-1").curves(clients, range(13))
    assert curves.epsilons.tolist() == [[one.spent[name].epsilon for name in ("c", "b", "a")] for one in records]


def test_states_say_what_became_of_a_client(store, url):
    states = {name: name for name in ("active", "exhausted", "refused", "failed")}
    states |= {"silent": "unreconciled", "recovered": "active"}
    accounts = [spent(name, 0.5, steps_left=0 if name == "exhausted" else 4) for name in states]
    failures = {"refused": "guard-unusable", "failed": "wrong-shape:0.weight", "silent": "no-reply"}
    rounds = [
        finished(0, accounts),
        finished(1, accounts, failures={"recovered": "no-reply"}, unreconciled=["recovered"]),
        finished(2, accounts, failures=failures, unreconciled=["silent"]),
    ]
    record(url, facts(), rounds)
    run = store.run("run-1")
    clients = {client.client_id: client for client in run.clients(ClientQuery())[1]}
    assert {name: client.state for name, client in clients.items()} == states
    recovered = clients["recovered"]
    assert (recovered.averaged, recovered.failed, recovered.reason) == (1, 1, None)
    assert clients["failed"].reason == "wrong-shape:0.weight"
    assert run.tally().states == Counter(states.values()) and sum(run.tally().failures.values()) == 4
    found = {f.reason: (f.times, f.clients, f.client_ids, f.last_round) for f in run.failures()}
    assert found["no-reply"] == (2, 2, ("recovered", "silent"), 2)


def test_clients_are_sorted_searched_and_paged(store, url):
    names = [f"ward-{n:03d}" for n in range(120)] + ["100%_sure", "100xysure"]
    record(url, facts(), growing(names, 2, pace={name: 0.1 + 0.01 * (n % 7) for n, name in enumerate(names)}))
    seen = []
    for offset in range(0, 140, 25):
        total, page = store.run("run-1").clients(ClientQuery(sort="epsilon", limit=25, offset=offset))
        assert total == 122
        seen += [(c.spent.epsilon, c.number) for c in page]
    assert seen == sorted(seen, key=lambda item: (-item[0], item[1])) and len(set(seen)) == 122
    assert store.run("run-1").clients(ClientQuery(search="WARD-01"))[0] == 10
    assert [c.client_id for c in store.run("run-1").clients(ClientQuery(search="%_"))[1]] == ["100%_sure"]
    assert store.run("run-1").clients(ClientQuery(state="exhausted"))[0] == 0


def test_an_outage_loses_nothing(store, url):
    records = growing(["a"], 3)
    recording = RunRecording(url, facts(), patience=0.05)
    recording.add(records[0])
    recording.flush()

    def refuse(connection, *_):
        raise connection.dialect.loaded_dbapi.OperationalError("disk I/O error")

    event.listen(Engine, "before_cursor_execute", refuse)
    for one in records[1:3]:
        recording.add(one)
        with pytest.raises(LedgerError, match="cannot be used"):
            recording.flush()
    event.remove(Engine, "before_cursor_execute", refuse)
    recording.add(records[3])
    recording.flush()
    recording.close()
    assert store.run("run-1").points(range(9)) == [one.point for one in records]


def test_audits_are_kept_in_their_order_and_runs_apart(store, url):
    for run_id, names in (("run-1", ["a", "b"]), ("two", ["b"])):
        record(url, facts(run_id), growing(names, 2))
    assert {run.facts.run_id for run in store.runs()} == {"run-1", "two"}
    assert [store.run(run_id).clients(ClientQuery())[0] for run_id in ("run-1", "two")] == [2, 1]
    found = [
        AuditResult(1.0, "canaries", "", 0.8, 0.95, 2.0, DELTA, "PLD", "server"),
        AuditResult(2.0, "replay", "a", 2.5, 0.95, math.inf, DELTA, "PLD", "server"),
    ]
    changes = store.changes()["run-1"]
    record_audits(url, "run-1", found)
    assert store.run("run-1").audits() == found and store.run("two").audits() == []
    assert store.changes()["run-1"] > changes, "who watches is told"
    assert store.run("none") is None
