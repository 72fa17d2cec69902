"""The apps that are deployed, `server/` and `clients/`: they work as they stand, and so do their examples."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict

import clients.app
import server.app
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.client.node import NodeSettings, Refused
from fedprivacy.flower.simulated import engine
from fedprivacy.flower.wire.messages import ENROL, GRANT, RefusalCode
from fedprivacy.runs.records.folder import read_history, read_lines
from fedprivacy.runs.records.store import RunStore, url_in
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.server.app import server_app
from fedprivacy.tasks.cancer import Cancer
from fedprivacy.tasks.digits import Digits
from fedprivacy.values.runs import RunStatus
from tests.flower.asked import a_grant, arrays_of, code, context_of

ROOT = Path(__file__).parents[2]
SERVER_EXAMPLE = ROOT / "server" / "example-config.toml"
NODE_EXAMPLE = ROOT / "clients" / "example-node-config.toml"


def on_this_host(text, node):
    """The example, with files that are there."""
    return tomllib.loads(text) | {name: node[name] for name in ("folder", "key")}


def test_the_examples_are_a_configuration_and_a_node_configuration_for_its_task_with_every_key(node):
    config = resolve(tomllib.loads(SERVER_EXAMPLE.read_text()))
    assert (config.task, config.clients, config.rounds, config.epsilon) == ("digits", 3, 20, 3.0)
    assert config.seed is None and config.signing_key and config.ledger
    settings = NodeSettings.of(on_this_host(NODE_EXAMPLE.read_text(), node))
    assert (settings.budget.epsilon, settings.budget.delta) == (3.0, 1e-5)
    assert isinstance(settings.task(config.task, None).original, Digits)
    commented = re.sub(r"^# ([a-z-]+ = )", r"\1", NODE_EXAMPLE.read_text(), flags=re.MULTILINE)
    given = on_this_host(commented, node)
    assert NodeSettings.of(given).most_steps == 100_000
    with pytest.raises(Refused, match="names nonsense; the keys are ") as refused:
        NodeSettings.of(given | {"nonsense": 0})
    keys = str(refused.value).split("the keys are ")[1].rstrip(".").split(", ")
    assert given.keys() == set(keys) - {"tasks"}


def deployed(**run_config):
    """A run of the deployed apps, as `flwr run` does it in a simulation."""
    grid = InProcessGrid(clients.app.app, 3, run_config)
    server.app.app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config))


@pytest.mark.exhaustive
def test_the_deployed_apps_train_as_the_library_s_do_and_run_nothing_again(tmp_path, undrawn):
    given, out = {"task": "cancer", "clients": 3, "rounds": 3, "seed": 1}, tmp_path / "deployed"
    config = resolve(given | {"out": str(tmp_path / "library")})
    engine.drive(server_app(config=config), private_client(config=config), config)
    expected = read_history(tmp_path / "library")
    for place in ("out", "resume"):
        deployed(**given, **{place: str(out)})
        assert read_history(out).rounds == expected.rounds and len(expected.rounds) == 3
    (stored,) = RunStore(url_in(out)).runs()
    assert stored.status is RunStatus.FINISHED


@pytest.fixture
def hospital(node):
    """A hospital whose own configuration names the task of this repository that it works on."""
    records = np.random.default_rng(0)
    content = {"features": records.random((40, 30)), "labels": np.zeros(40, dtype=np.int64)}
    np.savez(Path(node["folder"]) / "records.npz", **content)
    return node | {"task": "cancer", "epsilon": 1e6}


def told(hospital, grant):
    content = RecordDict({GRANT: grant.to_record(), "arrays": arrays_of(Cancer())})
    return clients.app.app(Message(content, 7, MessageType.TRAIN), context_of(hospital, task="cancer"))


def test_the_deployed_client_tells_another_server_nothing(hospital):
    forged = clients.app.app(Message(RecordDict(), 7, ENROL), context_of(hospital, task="cancer"))
    assert code(forged) is RefusalCode.ENROLMENT_INVALID
    assert code(told(hospital, replace(a_grant(), steps=1))) is RefusalCode.GRANT_INVALID
    assert not (Path(hospital["folder"]) / "guard.log").exists()


@pytest.mark.exhaustive
def test_the_deployed_apps_ask_where_the_run_config_names_questions(tmp_path):
    asked = {"questions": "count by diagnosis=malignant,benign; mean 'mean radius' 0 30", "noise-multiplier": 0.5}
    given = {"task": "cancer", "clients": 3, "rounds": 40, "seed": 1, "epsilon": "", **asked}
    deployed(**given, out=str(tmp_path / "out"), ledger=str(tmp_path / "ledger.db"))
    answers = json.loads((tmp_path / "out" / "answers.json").read_text())
    counts = [row["value"] for row in answers["federation"] if row["figure"] == "count" and row["group"]]
    assert counts == pytest.approx([170, 285], abs=8)
    assert {row["client_id"] for row in answers["clients"]} == set(answers["spent"])
    assert len(read_lines(tmp_path / "out")) <= 1  # nothing was trained
