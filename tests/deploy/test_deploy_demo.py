"""A deployment end to end, with this repository's own app: real processes, TLS, SuperNode authentication, loopback."""

import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.demo import HOSPITALS, Digits, run_demo
from fedprivacy.deploy.federation import (
    HOST,
    DeploymentError,
    LoopbackFederation,
    flower_environment,
    free_ports,
    program,
)
from fedprivacy.deploy.keys import write_client_key, write_keys
from fedprivacy.deploy.processes import ProcessError, SupervisedProcess, Supervisor
from fedprivacy.flower.client.node import GUARD
from fedprivacy.flower.server.accounts import WITNESS
from fedprivacy.guard import Guard
from fedprivacy.ledger import ChargeState, Ledger
from fedprivacy.ledger.verify import read_witness, verify_ledger
from fedprivacy.runs.folder import REPORT, read_history
from fedprivacy.values.budget import PrivacyBudget
from tests.deploy.survivors import processes_of

pytestmark = pytest.mark.exhaustive

REPOSITORY = Path(__file__).parents[2]
BUDGET = {"epsilon": 3.0, "delta": 1e-4}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Two rounds with three hospitals, each of which calls itself something else than it is registered as."""
    return run_demo(
        tmp_path_factory.mktemp("deployment"),
        REPOSITORY,
        Digits(),
        clients=HOSPITALS,
        run_config={"task": "digits", "rounds": 2, **BUDGET},
        node_config={**BUDGET, "client-id": "somebody-else"},
    )


def test_the_run_completes_and_leaves_its_results(demo):
    history = read_history(demo)
    assert [record.round for record in history.rounds] == [1, 2]
    assert (demo / REPORT).stat().st_size > 0
    assert (demo / "ledger.db").stat().st_size > 0


def test_clients_go_by_the_names_that_the_operator_registered(demo):
    for record in read_history(demo).rounds:
        assert set(record.spent) == set(record.participants) == set(HOSPITALS)
        assert not record.failures


def test_every_client_spends_within_its_budget_on_both_sides(demo):
    last = read_history(demo).rounds[-1]
    assert all(0 < client.epsilon <= BUDGET["epsilon"] for client in last.spent.values())
    for name in HOSPITALS:
        guard = Guard(demo.parent / "data" / name / GUARD, PrivacyBudget(**BUDGET))
        assert sum(guard.history().values()) == last.spent[name].steps


def test_the_ledger_verifies_and_a_witness_of_it_lies_beside_the_results(demo):
    witness = read_witness(demo / WITNESS)
    verified = verify_ledger(
        Ledger(f"sqlite:///{demo / 'ledger.db'}"), signers=[witness.public_key], witnesses=[witness]
    )
    assert {charge.state for charge in verified.replay.charges.values()} == {ChargeState.COMMITTED}


def test_no_process_and_no_open_port_is_left(demo):
    assert processes_of(demo.parent) == []
    config = (demo.parent / "operator" / "config.toml").read_text()
    (port,) = re.findall(rf'"{re.escape(HOST)}:(\d+)"', config)
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, int(port))) != 0


def test_a_failed_run_is_an_error_that_shows_the_servers_log(tmp_path):
    with pytest.raises(DeploymentError, match=r"(?s)finished:failed.*no-such-task"):
        run_demo(tmp_path, REPOSITORY, lambda _name, _folder: None, clients=["a"], run_config={"task": "no-such-task"})
    assert processes_of(tmp_path) == []


@pytest.fixture
def federation(tmp_path):
    """A SuperLink that knows one client."""
    with Supervisor(tmp_path / "logs") as supervisor:
        federation = LoopbackFederation(supervisor, tmp_path, ["hospital-0"])
        federation.start_superlink()
        federation.wait_for_superlink()
        federation.register()
        yield federation


def start_supernode(supervisor: Supervisor, home: Path, superlink: str, *options: str | Path) -> SupervisedProcess:
    """A SuperNode with the options of one's choice."""
    (port,) = free_ports(1)
    command = [program("flower-supernode"), "--superlink", superlink, "--host", HOST, "--port", str(port), *options]
    return supervisor.start("stray", command, environment=flower_environment(home))


def test_a_key_that_nobody_registered_is_kept_out(federation, tmp_path):
    node = federation.start_supernode(write_client_key(tmp_path, "stranger"), {})
    with pytest.raises(ProcessError, match="Failed to activate SuperNode"):
        federation.wait_until_online([node])


def test_a_supernode_without_a_key_is_kept_out(federation, tmp_path):
    with Supervisor(tmp_path / "stray") as supervisor:
        node = start_supernode(
            supervisor, tmp_path / "home", federation.address, "--root-certificates", federation.keys.ca_certificate
        )
        assert supervisor.wait(node, timeout=60) != 0
        assert "All SuperNodes must be registered" in node.tail(40)


def test_a_client_does_not_talk_to_a_server_of_another_authority(federation, tmp_path):
    options = ("--root-certificates", write_keys(tmp_path / "ours").ca_certificate, "--max-retries", "0")
    key = federation.keys.clients["hospital-0"].private_key
    with Supervisor(tmp_path / "stray") as supervisor:
        node = start_supernode(
            supervisor, tmp_path / "home", federation.address, "--auth-supernode-private-key", key, *options
        )
        assert supervisor.wait(node, timeout=60) != 0
        assert "certificate verify failed" in node.tail(40)


def test_the_demo_command_ends_with_the_table_of_clients(demo, monkeypatch):
    monkeypatch.setattr("fedprivacy.deploy.demo.run_demo", lambda *_arguments, **_options: demo)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(deploy_app, ["demo", "--out", str(demo.parent)])
    assert result.exit_code == 0
    assert all(name in result.output for name in HOSPITALS)
    assert str(demo / REPORT) in result.output
