"""A round that is stored is told to whoever listens, and once."""

import contextlib
import json
import time

import httpx
import pytest

from fedprivacy.dashboard import live
from fedprivacy.runs.records.store import RunRecording
from fedprivacy.values.runs import Phase, RunStatus, Stage
from tests.dashboard.shown import record, serving
from tests.runs.store.made_up import facts, growing

HANG = 60.0
"""Seconds after which something hangs."""


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'live' / 'ledger.db'}"


@contextlib.contextmanager
def listening(address, path, **headers):
    """Events as they come: (name, id, data)."""
    with httpx.stream("GET", f"{address}/api/v1/{path}", headers=headers, timeout=HANG) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.iter_lines())


def events(lines):
    fields = {}
    for line in lines:
        if not line and fields:
            yield fields.get("event"), fields.get("id"), json.loads(fields["data"])
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


@pytest.mark.exhaustive
def test_rounds_are_told_as_they_are_stored(url, tmp_path):
    records = growing(["a", "b"], 4)
    record(url, facts("live"), records[:2])
    with serving(tmp_path) as address, listening(address, "runs/live/events") as told:
        name, id, data = next(told)
        assert (name, id, data["round"]["round"], data["run"]["rounds"]) == ("round", "1", 1, 1)
        recording = RunRecording(url, facts("live"))
        for one in records[:2]:
            recording.add(one)
        recording.flush()
        for number in (2, 3, 4):
            recording.add(records[number])
            recording.flush()
            name, id, data = next(event for event in told if event[0] == "round")
            assert (id, data["round"]["round"]) == (str(number), number)
        recording.enter(Phase(Stage.TRAINING, 5, 2))
        recording.flush()
        name, id, data = next(told)
        assert (name, id, data["run"]["phase"]) == ("run", None, {"name": "training", "round": 5, "clients": 2})
        recording.end(RunStatus.FINISHED)
        recording.flush()
        assert next(told)[2]["run"]["status"] == "finished"
        recording.close()


def test_runs_that_begin_are_told_and_who_comes_back_is_not_told_the_same_round_again(url, tmp_path):
    record(url, facts("live"), growing(["a"], 3))
    with serving(tmp_path) as address:
        for seen, name in (("3", "run"), ("2", "round"), ("nonsense", "round")):
            with listening(address, "runs/live/events", **{"Last-Event-ID": seen}) as told:
                assert next(told)[0] == name
        with listening(address, "events") as told:
            assert next(told) == ("runs", None, {"total": 1})
            record(f"sqlite:///{tmp_path / 'more' / 'ledger.db'}", facts("more"), [])
            assert next(told) == ("runs", None, {"total": 2})


def test_a_silent_stream_says_that_it_is_there(url, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "HEARTBEAT", 0.2)
    record(url, facts("live"), [])
    with (
        serving(tmp_path) as address,
        httpx.stream("GET", f"{address}/api/v1/runs/live/events", timeout=HANG) as answer,
    ):
        assert next(line for line in answer.iter_lines() if line.startswith(":")) == ": still here"


def test_listeners_are_limited_and_leave_their_place_when_they_go(url, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_LISTENERS", 1)
    record(url, facts("live"), [])
    with serving(tmp_path) as address:
        with listening(address, "runs/live/events") as told:
            next(told)
            assert httpx.get(f"{address}/api/v1/runs/live/events", timeout=HANG).status_code == 503
        deadline = time.monotonic() + HANG
        while True:
            with contextlib.suppress(AssertionError), listening(address, "runs/live/events") as told:
                assert next(told)[0] == "run"
                break
            assert time.monotonic() < deadline
