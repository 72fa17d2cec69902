"""A deployment whose SuperNode and SuperLink are killed in the middle of a run: no charge is lost, and it goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.deploy.demo import DemoDigits
from fedprivacy.deploy.federation import LoopbackFederation
from fedprivacy.deploy.processes import ProcessError, Supervisor
from fedprivacy.flower.client.node import GUARD
from fedprivacy.guard import Guard
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import Verified, read_witness, verify_ledger
from fedprivacy.runs.records.folder import read_history, read_lines
from fedprivacy.runs.records.witnesses import WITNESS
from fedprivacy.values.budget import PrivacyBudget
from tests.deploy.survivors import kill

REPOSITORY = Path(__file__).parents[2]
BUDGET = {"epsilon": 3.0, "delta": 1e-4}
HOSPITALS = ("hospital-0", "hospital-1")
PATIENCE = 600.0


class Deployment:
    """Two hospitals, and a run of three rounds that is not waited for."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "results"
        self.ledger = f"sqlite:///{folder / 'ledger.db'}"
        self._federation = LoopbackFederation(supervisor, folder, HOSPITALS)
        self._keys = self._federation.keys.clients

    def start_server(self) -> None:
        self._federation.start_superlink()
        self._federation.wait_for_superlink()

    def register(self) -> None:
        self._federation.register()

    def start_clients(self, *names: str) -> None:
        nodes = [self._federation.start_supernode(self._keys[name], self._node_config(name)) for name in names]
        self._federation.wait_until_online(nodes)

    def restart_client(self, name: str) -> None:
        """Start again, as its service manager would: a SuperNode that was killed is refused for about a minute."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.start_clients(name)
            except ProcessError:
                assert time.monotonic() < deadline
                time.sleep(15.0)  # each attempt is a process

    def start_run(self, **more: str) -> None:
        settings = {"task": "digits", "clients": 2, "rounds": 3, "round-timeout": 60.0, **BUDGET}
        files = {"out": str(self.out), "ledger": self.ledger, "signing-key": str(self.folder / "signing.key")}
        self.run = self._federation.start_run(REPOSITORY, settings | files | more)

    def wait_for_round(self, number: int) -> None:
        """Until that many rounds are recorded."""
        deadline = time.monotonic() + PATIENCE
        while len(read_lines(self.out)) <= number:
            assert time.monotonic() < deadline, self.run.tail(40)
            time.sleep(0.1)

    def wait_for_end(self) -> str:
        deadline = time.monotonic() + PATIENCE
        while self.run.running:
            assert time.monotonic() < deadline, self.run.tail(40)
            time.sleep(0.1)
        return self._federation.run_status()

    def charged(self, name: str) -> int:
        """Steps on the client's own book."""
        guard = Guard(self.folder / name / GUARD, PrivacyBudget(**BUDGET))
        return sum(guard.history().values())

    def _node_config(self, name: str) -> dict[str, str | float]:
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            DemoDigits()(name, folder)
        server = server_public_key(server_key(self.folder / "signing.key"))
        own = {"folder": str(folder), "client-id": name, "key": str(self._keys[name].private_key), **BUDGET}
        return own | {"server-key": server, "task": "digits"}


@pytest.fixture
def deployment(tmp_path):
    with Supervisor(tmp_path / "logs") as supervisor:
        deployment = Deployment(supervisor, tmp_path)
        deployment.start_server()
        deployment.register()
        deployment.start_clients(*HOSPITALS)
        yield deployment


def checked_books(deployment: Deployment) -> Verified:
    """The journal is whole and as it was signed, and holds at least what each client's own book does."""
    ledger = Ledger(deployment.ledger)
    verified = verify_ledger(ledger, witnesses=[read_witness(deployment.out / WITNESS)])
    accounts = ledger.accounts([f"digits/{name}" for name in HOSPITALS])
    for name in HOSPITALS:
        assert 0 < deployment.charged(name) <= sum(accounts[f"digits/{name}"].history.values())
    return verified


@pytest.mark.exhaustive
def test_a_killed_supernode_and_a_killed_superlink_lose_no_charge_and_the_run_goes_on(deployment):
    deployment.start_run()
    deployment.wait_for_round(1)
    kill(deployment.folder / "supernodes" / "hospital-1")
    deployment.wait_for_round(2)
    kill(deployment.folder / "superlink")
    checked_books(deployment)
    before = {name: deployment.charged(name) for name in HOSPITALS}

    deployment.start_server()
    deployment.restart_client("hospital-1")
    deployment.start_run(resume=str(deployment.out))
    assert deployment.wait_for_end() == "finished:completed", deployment.run.tail(60)
    checked_books(deployment)
    history = read_history(deployment.out)
    assert [record.round for record in history.rounds] == [1, 2, 3]
    assert set(history.last.participants) == set(HOSPITALS)
    assert all(deployment.charged(name) > before[name] for name in HOSPITALS)
    assert all(client.epsilon <= BUDGET["epsilon"] for client in history.last.spent.values())
