"""One recorder feeds folder, store and trackers; what fails beside the folder never stops a run."""

import logging
import threading
import time
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from fedprivacy.flower import private_client
from fedprivacy.flower.simulated import engine
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import ERROR, read_history
from fedprivacy.runs.records.store import RunStore
from fedprivacy.runs.records.store import writer as run_store_writing
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.server.app import server_app
from fedprivacy.server.recorder import Recorder, StoreFeed
from fedprivacy.trackers import Tracker
from fedprivacy.values.runs import Phase, RunStatus, Stage
from tests.runs.store.made_up import facts, growing

SMALL = {"task": "cancer", "clients": 4, "rounds": 4, "seed": 1}


@pytest.mark.usefixtures("undrawn")
def test_a_store_that_fails_stops_no_run_and_is_said_once(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(run_store_writing.RunRecording, "flush", refuse)
    config = resolve(SMALL | {"out": str(tmp_path / "run")})
    with caplog.at_level(logging.WARNING, "fedprivacy.server"):
        engine.drive(server_app(config=config), private_client(config=config), config)
    assert len(read_history(tmp_path / "run").rounds) == 4
    said = [record.getMessage() for record in caplog.records]
    assert sum("the disk is full" in text for text in said) == 1
    assert sum("lacks the end of this run" in text for text in said) == 1


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger(url).close()
    return url


HANG = 60.0
"""Seconds after which something hangs."""


def wait_for(condition):
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_an_outage_kept_back_is_written_when_it_is_over(url, monkeypatch):
    monkeypatch.setattr("fedprivacy.server.recorder.INTERVAL", 0.01)
    failed, over = threading.Event(), threading.Event()
    flush = run_store_writing.RunRecording.flush

    def sometimes(recording):
        if not over.is_set():
            failed.set()
            raise LedgerError("gone")
        flush(recording)

    monkeypatch.setattr(run_store_writing.RunRecording, "flush", sometimes)
    records = growing(["a"], 3)
    feed = StoreFeed(url, facts())
    for record in records[:2]:
        feed.add(record)
    assert failed.wait(HANG)
    over.set()
    for record in records[2:]:
        feed.add(record)
    feed.end(RunStatus.FINISHED)
    store = RunStore(url)
    assert store.run("run-1").points(range(9)) == [one.point for one in records]
    assert store.runs()[0].status is RunStatus.FINISHED


def test_a_run_gives_signs_of_life_while_nothing_happens(url, monkeypatch):
    monkeypatch.setattr("fedprivacy.server.recorder.INTERVAL", 0.01)
    monkeypatch.setattr("fedprivacy.server.recorder.HEARTBEAT", 0.05)
    feed, store = StoreFeed(url, facts()), RunStore(url)
    wait_for(store.runs)
    first = store.runs()[0].updated
    wait_for(lambda: store.runs()[0].updated > first)
    feed.add(Phase(Stage.TRAINING, 1, 3))
    wait_for(lambda: store.runs()[0].phase == Phase(Stage.TRAINING, 1, 3))
    feed.end(RunStatus.FINISHED)
    assert store.runs()[0].phase is None


@pytest.mark.parametrize(
    ("why", "raised", "status", "draws"),
    [
        ("", None, RunStatus.FINISHED, True),
        ("no client has budget left", None, RunStatus.STOPPED, True),
        ("", KeyboardInterrupt, RunStatus.STOPPED, False),
        ("", ZeroDivisionError, RunStatus.FAILED, True),
    ],
    ids=["finished", "stopped", "Ctrl-C", "failed"],
)
def test_a_run_s_end_is_told_as_it_was_and_an_earlier_error_is_gone(tmp_path, monkeypatch, why, raised, status, draws):
    tracker, drawn = Mock(spec=Tracker), []
    monkeypatch.setattr("fedprivacy.server.recorder.draw", lambda history, folder: drawn.append(folder))
    plan = TrainingPlan.of(SMALL | {"out": str(tmp_path / "run")})
    recorder = Recorder(tmp_path / "run", plan, "run-1", trackers={"mock": tracker})
    for record in growing(["a", "b"], 2):
        recorder(record)
    (tmp_path / "run" / ERROR).write_text("of an earlier attempt")
    with pytest.raises(raised) if raised else nullcontext(), recorder.recording(Mock(arrays=None, stopped_because=why)):
        if raised:
            raise raised
    assert [call.args for call in tracker.end.call_args_list] == [(status,)]
    assert drawn == [tmp_path / "run"] * draws
    errors = [file.read_text() for file in (tmp_path / "run").glob(ERROR)]
    assert len(errors) == (status is RunStatus.FAILED) and all("ZeroDivisionError" in error for error in errors)
