"""No value of a record gets into the server's log, in any form; the client's own log names its failure."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedprivacy._support.logs import LogFormat, LogSettings
from fedprivacy.deploy.app_folder import write_app
from fedprivacy.deploy.demo import run_demo
from fedprivacy.runs.records.folder import read_history
from fedprivacy.training.dpsgd import DPSGD
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import run

PRIVATE = "4711.25"
CLINICS = ("clinic-a", "clinic-b")
SIDES = Path(__file__).parents[1] / "deploy" / "blobs_task.py"
BUDGET = {"epsilon": 3.0, "delta": 1e-3}
BEGINS = re.compile(r"^\d{4}-\S+Z [A-Z]+ \[([\w.]+)] ", flags=re.MULTILINE)

FAILING = '''

class Failing(Sides):
    """A clinic's second look at a point that is too large fails, with the point in the error."""

    def shard(self, source):
        shard = super().shard(source)
        if source.folder is not None and (worst := shard.inputs.max().item()) > 1000:
            if (source.folder / "seen").exists():
                raise ValueError(f"the point {worst} is no measurement")
            (source.folder / "seen").touch()
        return shard
'''


def events_in(text, form):
    """Events of a log, in order: the logger and all of its text."""
    if form is LogFormat.JSON:
        return [(json.loads(line)["logger"], line) for line in text.splitlines()]
    starts = [(found.start(), found[1]) for found in BEGINS.finditer(text)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    assert starts[0][0] == 0
    return [(logger, text[start:end]) for (start, logger), end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("form", LogFormat)
def test_a_client_s_failure_is_in_its_own_log_and_its_values_are_not_in_the_server_s(
    form, tmp_path, capfd, monkeypatch
):
    train = DPSGD.train

    def failing(self, engine, shard, **given):
        if len(shard) == 31:
            raise ValueError(f"the age {PRIVATE} is no number")
        return train(self, engine, shard, **given)

    monkeypatch.setattr(DPSGD, "train", failing)
    plan = plan_of(BLOBS, epsilon=3.0, rounds=2, ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    LogSettings(form).begin()
    done = run(plan)
    events = events_in(capfd.readouterr().err, form)
    assert [record.failures for record in done.records] == [{"client-1": "client-failed"}] * 2
    own = [text for logger, text in events if logger == "fedprivacy.client"]
    others = [text for logger, text in events if logger != "fedprivacy.client"]
    failures = [text for text in own if "This client sends no update (client-failed)." in text]
    assert len(failures) == 2 and all(f"the age {PRIVATE} is no number" in text for text in failures)
    rounds = [text for text in others if "Round 2: accuracy" in text]
    about = [f'"run": "{done.run_id}"', '"round": 2'] if form is LogFormat.JSON else [f"run={done.run_id}", "round=2"]
    assert len(rounds) == 1 and all(each in text for text in (rounds[0], failures[1]) for each in about)
    assert any("No update in round 2 from client-1 (client-failed)." in text for text in others)
    assert not any(PRIVATE in text for text in others)


@pytest.mark.exhaustive
def test_on_real_hosts_too_every_line_of_every_log_is_json_and_only_the_hospital_s_has_the_value(tmp_path):
    (tmp_path / "mine.py").write_text(SIDES.read_text() + FAILING)

    def write_points(clinic, folder):
        points = np.random.default_rng(CLINICS.index(clinic)).normal(size=(80, 2))
        points[7, 1] = float(PRIVATE) if clinic == "clinic-b" else points[7, 1]
        np.save(folder / "points.npy", points)

    app = write_app(tmp_path / "sides", f"{tmp_path / 'mine.py'}:Failing", clients=len(CLINICS))
    files = run_demo(
        *(tmp_path / "out", app.folder, write_points),
        clients=CLINICS,
        run_config={"task": app.task, "rounds": 2, **BUDGET},
        node_config=BUDGET,
        form=LogFormat.JSON,
    )
    assert [record.failures for record in read_history(files).rounds] == [{"clinic-b": "client-failed"}] * 2
    logs = tmp_path / "out" / "logs"
    names = ("superlink", "superexec", "run", "supernode-clinic-a", "supernode-clinic-b")
    texts = {name: (logs / f"{name}.log").read_text() for name in names}
    events = {name: [json.loads(line) for line in text.splitlines()] for name, text in texts.items()}
    assert all(events.values())
    assert all({"time", "level", "logger", "message"} <= event.keys() for each in events.values() for event in each)
    assert "\\u001b" not in "".join(texts.values())
    assert [name for name, text in texts.items() if PRIVATE in text] == ["supernode-clinic-b"]
    failed = [event for event in events["supernode-clinic-b"] if PRIVATE in event.get("error", "")]
    assert [(event["logger"], event["message"], event["round"]) for event in failed] == [
        ("fedprivacy.client", "This client sends no update (client-failed).", number) for number in (1, 2)
    ]
    told = [event for event in events["run"] if event.get("run") == failed[0]["run"] and event.get("round") == 2]
    assert "No update in round 2 from clinic-b (client-failed)." in [event["message"] for event in told]
    assert any(event["message"].startswith("Round 2: accuracy") for event in told)
