"""Trackers get every public number and nothing else, keep it on the machine, and can do a run no harm."""

import json
import math
import os
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import tomllib
from contextlib import closing

import numpy as np
import pytest

from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.trackers import TRACKERS, Feed, build_trackers
from fedprivacy.trackers.tracker import scalars, settings
from fedprivacy.values.runs import RunStatus
from tests.trackers.tracked_run import FACTS, POINTS, ROOT, point, warnings

GUARANTEE = {"view": "server", "accountant": "PLD", "relation": "zero-out", "unit": "record", "delta": 1e-5}

SETTINGS = {
    "task": "digits",
    "clients": 4,
    "rounds": 3,
    "local-steps": 5,
    "epsilon": math.inf,
    "delta": 1e-5,
    "noise-multiplier": 1.125,
    "sampling-rate": 0.25,
    "strategy": "fedavg",
    "device": "auto",
}


def same(found, expected):
    """Equality that holds for what is not a number, too."""
    np.testing.assert_equal(found, expected)


class Listener:
    """Plays W&B's server and every web proxy at once, and counts who calls."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.calls = 0
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self):
        while True:
            connection, _ = self._socket.accept()
            self.calls += 1
            connection.close()


def elsewhere(listener, home):
    """The environment of somebody who wants everything kept and sent, outside a test."""
    ours = ("PYTEST", "WANDB", "MLFLOW", "CI", "GITHUB_ACTIONS", "NO_PROXY", "DO_NOT_TRACK")
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(ours)}
    proxies = dict.fromkeys(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"], listener.url)
    wandb = {
        "WANDB_MODE": "online",
        "WANDB_API_KEY": "a" * 40,
        "WANDB_BASE_URL": listener.url,
        "WANDB_DIR": str(home),
        "WANDB_CONSOLE": "wrap",
        "WANDB_SAVE_CODE": "true",
        "WANDB__STATS_SAMPLING_INTERVAL": "0.1",
    }
    return kept | proxies | wandb | {"HOME": str(home)}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run's folder that all trackers were fed in, what the program said, and how often it was on the network."""
    folder, home = tmp_path_factory.mktemp("a run"), tmp_path_factory.mktemp("home")
    listener = Listener()
    program = subprocess.run(
        [sys.executable, "-m", "tests.trackers.tracked_run", str(folder)],
        cwd=ROOT,
        env=elsewhere(listener, home),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert program.returncode == 0, program.stderr
    return folder, program, listener


@pytest.mark.exhaustive
def test_nothing_leaves_the_machine_nothing_is_said_and_no_path_or_address_is_written(tracked):
    folder, program, listener = tracked
    assert program.stdout.splitlines() == ["a console's words"] * len(POINTS) + ["[]"]
    assert listener.calls == 0
    assert program.stderr == ""
    written = [*(folder / "tensorboard").iterdir(), folder / "mlflow.db", *folder.glob("wandb/offline-run-*/run-*")]
    assert len(written) == 3
    for path in written:
        content = path.read_bytes()
        assert b"digits" in content
        for private in (b"hunter2", b"alice", b"postgresql+psycopg"):
            assert private not in content


# TensorBoard


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def series(events, name):
    known = name in events.Tags()["scalars"]
    return [(event.step, event.value) for event in events.Scalars(name)] if known else []


def text(events, name):
    (event,) = events.Tensors(f"{name}/text_summary")
    return event.tensor_proto.string_val[0].decode()


@pytest.mark.exhaustive
def test_tensorboard_shows_every_number_of_every_round_settings_guarantee_and_status(tracked):
    events = read_tensorboard(tracked[0])
    assert set(events.Tags()["scalars"]) == set(scalars(POINTS[0]))
    for name in scalars(POINTS[0]):
        same(series(events, name), [(each.round, np.float32(scalars(each)[name])) for each in POINTS])
    rows = text(events, "settings").splitlines()
    assert rows[2:] == [f"| {key} | {value} |" for key, value in (settings(FACTS) | GUARANTEE).items()]
    assert text(events, "status") == "stopped"


def test_in_tensorboard_a_run_that_goes_on_replaces_the_rounds_that_are_run_again(tmp_path):
    for first, accuracies in [(0, [0.1, 0.2, 0.3]), (2, [0.7, 0.8])]:
        tracker = build_trackers("tensorboard")["tensorboard"]
        tracker.begin(FACTS, tmp_path)
        for number, accuracy in enumerate(accuracies, first):
            tracker.record(point(number, loss=accuracy))
        tracker.end("stopped")
    found = series(read_tensorboard(tmp_path), "metrics/loss")
    assert found == [(0, np.float32(0.1)), (1, np.float32(0.2)), (2, np.float32(0.7)), (3, np.float32(0.8))]


# MLflow

LARGEST = sys.float_info.max


def in_mlflow(name, value):
    """A number's name and value as MLflow keeps them."""
    finite = value if math.isnan(value) else max(-LARGEST, min(value, LARGEST))
    return name.replace("@", "_").replace("%", "_"), finite


def mlflow_client(folder):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")


def only_run(client):
    (run,) = client.search_runs([client.get_experiment_by_name("fedprivacy").experiment_id])
    return run


def history(client, run, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


@pytest.mark.exhaustive
def test_mlflow_holds_every_number_of_every_round_settings_guarantee_and_status(tracked):
    client = mlflow_client(tracked[0])
    run = only_run(client)
    assert set(run.data.metrics) == {in_mlflow(name, 0.0)[0] for name in scalars(POINTS[0])}
    for name in scalars(POINTS[0]):
        kept, _ = in_mlflow(name, 0.0)
        same(history(client, run, kept), [(each.round, in_mlflow(name, scalars(each)[name])[1]) for each in POINTS])
    assert run.info.run_name == "digits-1"
    assert run.info.status == "KILLED"
    assert run.data.params == {key: str(value) for key, value in SETTINGS.items()}
    assert {name: run.data.tags[name] for name in GUARANTEE} == {name: str(value) for name, value in GUARANTEE.items()}
    assert run.data.tags["run_id"] == FACTS.run_id


@pytest.mark.exhaustive
def test_in_mlflow_a_run_that_goes_on_stays_one_run_where_its_own_setting_says(tmp_path, monkeypatch):
    """MLFLOW_TRACKING_URI names another store than the run's folder."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := (tmp_path / "store").as_uri())
    client = MlflowClient(tracking_uri=uri)
    ends = {RunStatus.FAILED: "FAILED", RunStatus.STOPPED: "KILLED", RunStatus.FINISHED: "FINISHED"}
    for points, (status, told) in zip((POINTS[:1], POINTS[1:2], POINTS[2:]), ends.items(), strict=True):
        tracker = build_trackers("mlflow")["mlflow"]
        tracker.begin(FACTS, tmp_path / "run")
        assert only_run(client).info.status == "RUNNING"
        for each in points:
            tracker.record(each)
        tracker.end(status)
        assert only_run(client).info.status == told
    found = history(client, only_run(client), "epsilon/median")
    assert found == [(each.round, each.epsilons.median) for each in POINTS]
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_mlflow_writes_into_the_run_s_folder_whatever_characters_its_name_has(tmp_path):
    """In a URL `%41` is an A, and a `?` begins its options."""
    (tmp_path / "PA").mkdir()
    (folder := tmp_path / "P%41?x=é 100%").mkdir()
    tracker = build_trackers("mlflow")["mlflow"]
    tracker.begin(FACTS, folder)
    tracker.record(POINTS[0])
    tracker.end(RunStatus.FINISHED)
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        assert database.execute("SELECT name, status FROM runs").fetchall() == [("digits-1", "FINISHED")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["P%41?x=é 100%", "PA"]
    assert not [*(tmp_path / "PA").iterdir()]


@pytest.mark.exhaustive
def test_mlflow_says_why_it_has_no_database(tmp_path, caplog):
    (tmp_path / "mlflow.db").write_text("no database " * 100)
    feed = Feed(build_trackers("mlflow"))
    feed.begin(FACTS, tmp_path)
    feed.end("finished", patience=600.0)
    (message,) = warnings(caplog)
    assert message.startswith("Tracker mlflow is left out of the rest of the run: RuntimeError: ")
    assert "not a database" in message


# W&B


def wandb_records(path):
    """The records of a .wandb file: LevelDB's log format, of one block here, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    content, place = path.read_bytes(), 7
    assert content[:4] == b":W&B" and len(content) < 32768
    while place < len(content):
        start = place + 7
        _, length, _ = struct.unpack("<IHB", content[place:start])
        yield wandb_internal_pb2.Record.FromString(content[start : start + length])
        place = start + length


def values(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.exhaustive
def test_wandb_holds_settings_every_number_of_every_round_and_the_status_and_nothing_of_the_machine(tracked):
    (path,) = tracked[0].glob("wandb/offline-run-*/run-5f0c.wandb")
    records = list(wandb_records(path))
    rounds = [values(record.history.item) for record in records if record.HasField("history")]
    assert [each["_step"] for each in rounds] == [0, 1, 2, 3]
    for found, each in zip(rounds, POINTS, strict=True):
        same({name: value for name, value in found.items() if not name.startswith("_")}, scalars(each))
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.display_name, run.run_id) == ("fedprivacy", "digits-1", FACTS.run_id)
    config = values(run.config.update)
    assert {name: value for name, value in config.items() if name != "_wandb"} == SETTINGS | GUARANTEE
    summaries = [values(record.summary.update) for record in records if record.HasField("summary")]
    assert "stopped" in [summary.get("status") for summary in summaries]
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]
    assert [file for file in (path.parent / "files").rglob("*") if file.is_file()] == []
    assert run.host == "" and not run.HasField("git")
    kinds = {record.WhichOneof("record_type") for record in records}
    assert kinds <= {"header", "run", "telemetry", "history", "summary", "exit"}  # telemetry: versions, features used
    content = path.read_bytes()
    for told in (sys.executable, "tracked_run", "words", str(path.parent), str(ROOT)):
        assert told.encode() not in content


# The names in the setting


def test_missing_libraries_are_all_named_with_the_extra_that_brings_them(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as refused:
        build_trackers(",".join(TRACKERS))
    assert refused.value.problems == [
        f"trackers names '{name}', and this Python has no {name}; install 'fedprivacy[{name}]'." for name in TRACKERS
    ]


def test_every_tracker_is_an_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(TRACKERS) <= set(project["optional-dependencies"])
