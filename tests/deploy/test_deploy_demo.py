"""A deployment end to end, with a task of a user's own: real processes, TLS, SuperNode authentication, loopback."""

import json
import re
import socket

import numpy as np
import pytest

from fedprivacy._support.logs import LogFormat
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.app_folder import write_app
from fedprivacy.deploy.demo import run_demo
from fedprivacy.deploy.federation import HOST, DeploymentError
from fedprivacy.flower.client.node import GUARD
from fedprivacy.guard import Guard
from fedprivacy.ledger import ChargeState, Ledger
from fedprivacy.ledger.verify import read_witness, verify_ledger
from fedprivacy.runs.records.folder import REPORT, read_history
from fedprivacy.runs.records.witnesses import WITNESS
from fedprivacy.values.budget import PrivacyBudget
from tests.deploy.survivors import processes_of
from tests.deploy.written_hosts import OWN, REPOSITORY
from tests.terminal import CliRunner
from tests.written import check_notebook

CLINICS = ("clinic-a", "clinic-b")
BUDGET = {"epsilon": 3.0, "delta": 1e-3}


def write_points(clinic, folder):
    np.save(folder / "points.npy", np.random.default_rng(CLINICS.index(clinic)).normal(size=(80, 2)))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Two rounds with two clinics, each of which calls itself something else than it is registered as."""
    folder = tmp_path_factory.mktemp("deployment")
    app = write_app(folder / "sides", f"{OWN}:Sides", clients=len(CLINICS))
    return run_demo(
        folder,
        app.folder,
        write_points,
        clients=CLINICS,
        run_config={"task": app.task, "rounds": 2, **BUDGET},
        node_config={**BUDGET, "client-id": "somebody-else"},
        form=LogFormat.JSON,
    )


def test_a_run_trains_with_clients_by_the_names_that_the_operator_registered(demo):
    records = read_history(demo).rounds
    assert len(records) == 2 and not any(record.failures for record in records)
    assert all(set(record.spent) == set(record.participants) == set(CLINICS) for record in records)
    assert (demo / REPORT).stat().st_size > 0


def test_both_books_agree_within_the_budget_and_the_ledger_verifies_against_its_witness(demo):
    spent = read_history(demo).last.spent
    assert all(0 < client.epsilon <= BUDGET["epsilon"] for client in spent.values())
    for name in CLINICS:
        guard = Guard(demo.parent / "data" / name / GUARD, PrivacyBudget(**BUDGET))
        assert sum(guard.history().values()) == spent[name].steps
    witness = read_witness(demo / WITNESS)
    ledger = Ledger(f"sqlite:///{demo / 'ledger.db'}")
    verified = verify_ledger(ledger, signers=[witness.public_key], witnesses=[witness])
    assert {charge.state for charge in verified.replay.charges.values()} == {ChargeState.COMMITTED}


def test_every_line_of_every_log_is_one_event(demo):
    logs = demo.parent / "logs"
    for name in ("superlink", "superexec", "run", *(f"supernode-{clinic}" for clinic in CLINICS)):
        text = (logs / f"{name}.log").read_text()
        events = [json.loads(line) for line in text.splitlines()]
        assert events and all({"time", "level", "logger", "message"} <= event.keys() for event in events)
        assert "\\u001b" not in text


def test_no_process_and_no_open_port_is_left(demo):
    assert processes_of(demo.parent) == []
    config = (demo.parent / "operator" / "config.toml").read_text()
    (port,) = re.findall(rf'"{re.escape(HOST)}:(\d+)"', config)
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, int(port))) != 0


def test_the_command_ends_with_the_table_of_clients(demo, monkeypatch):
    monkeypatch.setattr("fedprivacy.deploy.demo.run_demo", lambda *_arguments, **_options: demo)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(deploy_app, ["demo", "--out", str(demo.parent)])
    assert result.exit_code == 0
    assert all(name in result.output for name in CLINICS)
    assert str(demo / REPORT) in result.output


@pytest.mark.exhaustive
def test_the_notebook_of_a_rehearsed_deployment_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_notebook(REPOSITORY / "docs/notebooks/9-deployment.md")


@pytest.mark.soak
def test_a_failed_run_is_an_error_that_shows_the_servers_log(tmp_path):
    with pytest.raises(DeploymentError, match=r"(?s)finished:failed.*no-such-task"):
        run_demo(tmp_path, REPOSITORY, lambda _name, _folder: None, clients=["a"], run_config={"task": "no-such-task"})
    assert processes_of(tmp_path) == []
