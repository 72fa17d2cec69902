"""Trackers get every public number and nothing else, keep it on the machine, and can do a run no harm."""

import json
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedprivacy.runs.configuration import ConfigError, resolve
from fedprivacy.trackers import TRACKERS, Feed, build_trackers
from fedprivacy.trackers.protocol import scalars, settings
from fedprivacy.values.runs import RunStatus
from tests.trackers.tracked_run import FACTS, POINTS, point

ROOT = Path(__file__).parent.parent.parent

GUARANTEE = {"view": "server", "accountant": "PLD", "relation": "zero-out", "delta": 1e-5}

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
        timeout=120,
    )
    assert program.returncode == 0, program.stderr
    return folder, program, listener


@pytest.mark.exhaustive
def test_nothing_leaves_the_machine_and_nothing_is_said(tracked):
    _, program, listener = tracked
    assert program.stdout.splitlines() == ["a console's words"] * len(POINTS) + ["[]"]
    assert listener.calls == 0
    assert program.stderr == ""


def test_no_path_and_no_address_reaches_a_tracker(tracked):
    folder, _, _ = tracked
    assert settings(FACTS) == SETTINGS
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


def test_tensorboard_shows_every_number_of_every_round(tracked):
    events = read_tensorboard(tracked[0])
    assert set(events.Tags()["scalars"]) == set(scalars(POINTS[0]))
    for name in scalars(POINTS[0]):
        same(series(events, name), [(each.round, np.float32(scalars(each)[name])) for each in POINTS])


def test_tensorboard_shows_settings_guarantee_and_status(tracked):
    events = read_tensorboard(tracked[0])
    rows = text(events, "settings").splitlines()
    assert rows[2:] == [f"| {key} | {value} |" for key, value in (settings(FACTS) | GUARANTEE).items()]
    assert text(events, "status") == "stopped"


def test_a_live_tensorboard_sees_each_round(tmp_path):
    tracker = build_trackers("tensorboard")["tensorboard"]
    tracker.begin(FACTS, tmp_path)
    for each in POINTS[:2]:
        tracker.record(each)
        deadline = time.monotonic() + 20
        while len(seen := series(read_tensorboard(tmp_path), "epsilon/most")) <= each.round:
            assert time.monotonic() < deadline, f"round {each.round} is not there: {seen}"
            time.sleep(0.1)
    tracker.end("finished")


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


def test_mlflow_holds_every_number_of_every_round(tracked):
    client = mlflow_client(tracked[0])
    run = only_run(client)
    assert set(run.data.metrics) == {in_mlflow(name, 0.0)[0] for name in scalars(POINTS[0])}
    for name in scalars(POINTS[0]):
        kept, _ = in_mlflow(name, 0.0)
        same(history(client, run, kept), [(each.round, in_mlflow(name, scalars(each)[name])[1]) for each in POINTS])


def test_mlflow_holds_settings_guarantee_and_status(tracked):
    run = only_run(mlflow_client(tracked[0]))
    assert run.info.run_name == "digits-1"
    assert run.info.status == "KILLED"
    assert run.data.params == {key: str(value) for key, value in SETTINGS.items()}
    assert {name: run.data.tags[name] for name in GUARANTEE} == {name: str(value) for name, value in GUARANTEE.items()}
    assert run.data.tags["run_id"] == FACTS.run_id


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """MLFLOW_TRACKING_URI names another store than the run's folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := (tmp_path / "store").as_uri())
    return uri


def test_mlflow_s_own_setting_says_where_the_runs_go(own_store, tmp_path):
    tracker = build_trackers("mlflow")["mlflow"]
    tracker.begin(FACTS, tmp_path / "run")
    tracker.record(POINTS[0])
    tracker.end(RunStatus.FAILED)
    from mlflow import MlflowClient

    run = only_run(MlflowClient(tracking_uri=own_store))
    assert run.data.metrics["metrics/accuracy"] == 0.0
    assert run.info.status == "FAILED"
    assert not (tmp_path / "run").exists()


def test_in_mlflow_a_run_that_goes_on_stays_one_run(own_store, tmp_path):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=own_store)
    for points in (POINTS[:2], POINTS[2:]):
        tracker = build_trackers("mlflow")["mlflow"]
        tracker.begin(FACTS, tmp_path)
        assert only_run(client).info.status == "RUNNING"
        for each in points:
            tracker.record(each)
        tracker.end(RunStatus.FINISHED)
    assert only_run(client).info.status == "FINISHED"
    found = history(client, only_run(client), "epsilon/median")
    assert found == [(each.round, each.epsilons.median) for each in POINTS]


def test_mlflow_says_why_it_has_no_database(tmp_path, caplog):
    (tmp_path / "mlflow.db").write_text("no database " * 100)
    feed = Feed(build_trackers("mlflow"))
    feed.begin(FACTS, tmp_path)
    feed.end("finished")
    (message,) = warnings(caplog)
    assert message.startswith("Tracker mlflow is left out of the rest of the run: RuntimeError: ")
    assert "not a database" in message


# W&B


def wandb_records(path):
    """The records of a .wandb file: LevelDB's log format, blocks of 32 KiB, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    full, last = 1, 4
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    place, whole = 7, b""
    while place < len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (full, last):
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def values(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_wandb_holds_settings_every_number_of_every_round_and_the_status(tracked):
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


def test_wandb_keeps_nothing_of_the_machine(tracked):
    (run,) = tracked[0].glob("wandb/offline-run-*")
    assert [path for path in (run / "files").rglob("*") if path.is_file()] == []
    (path,) = run.glob("run-*.wandb")
    records = list(wandb_records(path))
    (kept,) = [record.run for record in records if record.HasField("run")]
    assert kept.host == ""
    assert not kept.HasField("git")
    kinds = {record.WhichOneof("record_type") for record in records}
    assert kinds <= {"header", "run", "telemetry", "history", "summary", "exit"}  # telemetry: versions, features used
    content = path.read_bytes()
    for told in (sys.executable, "tracked_run", "words", str(run), str(ROOT)):
        assert told.encode() not in content


# The names in the setting


def test_an_empty_setting_names_no_tracker():
    assert build_trackers("") == {}


def test_the_setting_names_trackers_between_commas():
    assert list(build_trackers(" tensorboard,tensorboard, ")) == ["tensorboard"]


def test_unknown_names_are_all_refused_with_the_remedy():
    with pytest.raises(ConfigError) as refused:
        resolve({"trackers": "tensorbord, tensorboard,comet"})
    assert refused.value.problems == [
        f"trackers names '{name}'; choose from tensorboard, mlflow, wandb, separated by commas."
        for name in ("tensorbord", "comet")
    ]


def test_the_configuration_knows_every_tracker():
    assert resolve({"trackers": ",".join(TRACKERS)}).trackers == "tensorboard,mlflow,wandb"


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


def test_a_folder_of_the_same_name_is_no_library(monkeypatch, tmp_path):
    """W&B leaves a folder `wandb` where it runs, which Python would import as an empty package."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"trackers names 'wandb', which cannot be loaded .*'fedprivacy\[wandb\]'"):
        build_trackers("wandb")


def test_every_tracker_is_an_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(TRACKERS) <= set(project["optional-dependencies"])


# The feed


class Told:
    """A tracker that remembers what it is told, and may fail or hang at one of its calls."""

    def __init__(self, *, fail_at=None, hang_at=None, hang_until=None):
        self.calls = []
        self._fail_at, self._hang_at, self._hang_until = fail_at, hang_at, hang_until
        self.hanging = threading.Event()

    def begin(self, facts, folder):
        self._told("begin", (facts, folder))

    def record(self, point):
        self._told("record", point)

    def end(self, status):
        self._told("end", status)

    def _told(self, name, what):
        self.calls.append((name, what))
        if name == self._hang_at:
            self.hanging.set()
            self._hang_until.wait()
        if name == self._fail_at:
            raise OSError(f"no {name} today")


EVERYTHING = [
    ("begin", (FACTS, Path("run"))),
    *(("record", each) for each in POINTS),
    ("end", "finished"),
]


@pytest.fixture
def never():
    """What a hanging tracker waits for; it comes after the test, so that its thread ends."""
    event = threading.Event()
    yield event
    event.set()


def feed_all(trackers, patience=20.0):
    feed = Feed(trackers)
    feed.begin(FACTS, Path("run"))
    for each in POINTS:
        feed.record(each)
    feed.end("finished", patience)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "fedprivacy.server"]


def test_every_tracker_is_told_everything_in_order(caplog):
    trackers = {"one": Told(), "other": Told()}
    feed_all(trackers)
    assert [tracker.calls for tracker in trackers.values()] == [EVERYTHING, EVERYTHING]
    assert warnings(caplog) == []


@pytest.mark.parametrize(("call", "told"), [("begin", 1), ("record", 2), ("end", len(EVERYTHING))])
def test_a_tracker_that_raises_is_left_out_and_the_others_are_fed(caplog, call, told):
    bad, good = Told(fail_at=call), Told()
    feed_all({"bad": bad, "good": good})
    assert bad.calls == EVERYTHING[:told]
    assert good.calls == EVERYTHING
    assert [record.levelno for record in caplog.records if record.name == "fedprivacy.server"] == [logging.WARNING]
    assert warnings(caplog) == [f"Tracker bad is left out of the rest of the run: OSError: no {call} today"]


def test_a_tracker_that_wants_to_end_the_program_is_left_out(caplog):
    class Quitter(Told):
        def record(self, point):
            sys.exit("enough")

    feed_all({"bad": Quitter(), "good": (good := Told())})
    assert good.calls == EVERYTHING
    assert warnings(caplog) == ["Tracker bad is left out of the rest of the run: SystemExit: enough"]


@pytest.mark.parametrize(("call", "lacks"), [("begin", "4 rounds"), ("record", "4 rounds"), ("end", "0 rounds")])
def test_a_tracker_that_hangs_delays_neither_rounds_nor_the_end_nor_the_others(caplog, never, call, lacks):
    hanging, good = Told(hang_at=call, hang_until=never), Told()
    feed = Feed({"bad": hanging, "good": good})
    begun = time.monotonic()
    feed.begin(FACTS, Path("run"))
    for each in POINTS:
        feed.record(each)
    assert time.monotonic() - begun < 2
    if call != "end":
        assert hanging.hanging.wait(20)
    begun = time.monotonic()
    feed.end("finished", patience=0.5)
    assert time.monotonic() - begun < 5
    assert good.calls == EVERYTHING
    assert warnings(caplog) == [f"Tracker bad does not answer: it lacks {lacks}, and the end of the run."]


def test_the_patience_is_for_all_trackers_together(never):
    trackers = {str(number): Told(hang_at="begin", hang_until=never) for number in range(20)}
    begun = time.monotonic()
    feed_all(trackers, patience=0.5)
    assert time.monotonic() - begun < 5


def test_of_the_rounds_that_pile_up_behind_a_tracker_the_oldest_are_dropped_and_it_is_said(caplog):
    free = threading.Event()
    slow, good = Told(hang_at="begin", hang_until=free), Told()
    feed = Feed({"slow": slow, "good": good}, most_waiting=5)
    feed.begin(FACTS, Path("run"))
    for number in range(12):
        feed.record(point(number))
        while len(good.calls) < number + 2:  # begin, and a call for each round
            time.sleep(0.001)
    free.set()
    feed.end("finished", 20.0)
    assert [what.round for name, what in slow.calls if name == "record"] == [7, 8, 9, 10, 11]
    assert [what.round for name, what in good.calls if name == "record"] == list(range(12))
    assert slow.calls[-1] == ("end", "finished")
    assert warnings(caplog) == [
        "Tracker slow is slow: 5 rounds wait for it. From now on, the oldest are dropped.",
        "Tracker slow was too slow: 7 rounds were dropped before it.",
    ]


def test_the_end_waits_for_a_tracker_that_is_slow_but_alive(caplog):
    class Slow(Told):
        def record(self, point):
            time.sleep(0.1)
            super().record(point)

    feed_all({"slow": (slow := Slow())})
    assert slow.calls == EVERYTHING
    assert warnings(caplog) == []


def test_the_end_of_a_run_that_never_began_waits_for_nobody():
    feed = Feed({"one": (tracker := Told())})
    feed.end("failed")
    assert tracker.calls == []


def test_no_library_is_loaded_before_a_tracker_is_built():
    libraries = "{'torch', 'tensorboard', 'mlflow', 'wandb'}"
    program = f"import sys, fedprivacy.trackers; sys.exit(str({libraries} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stderr.strip() == "set()"


def test_the_interpreter_ends_although_a_tracker_hangs():
    program = """
import time
from pathlib import Path
from fedprivacy.trackers.feed import Feed
from tests.trackers.tracked_run import FACTS

class Hanging:
    def begin(self, facts, folder):
        time.sleep(600)

feed = Feed({"bad": Hanging()})
feed.begin(FACTS, Path("run"))
feed.end("finished", patience=0.1)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
