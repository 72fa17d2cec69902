"""A deployment in one process: clients with keys, folders and guards of their own, on the in-process engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Context, RecordDict, UserConfig
from flwr.proto.node_pb2 import NodeInfo

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.deploy.keys import ClientKeys, write_client_key
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.client.node import GUARD
from fedprivacy.guard import Guard
from fedprivacy.runs.plans.plan import TrainingPlan
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import history_of, run


def pem(keys: ClientKeys) -> bytes:
    """A public key as the SuperLink knows it."""
    key = load_ssh_public_key(keys.public_key.read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class DeployedGrid(InProcessGrid):
    """Registered SuperNodes, `hospital-0` and so on; each is a deployed client that trusts the run's key alone.

    Args:
        plan: of the run; `clients` says how many.
        folder: for keys, data and guards.
        client_app: what they run; None: the real one.
        own: what each data owner's node configuration says besides, by its keys.
    """

    def __init__(self, plan: TrainingPlan, folder: Path, client_app=None, **own: Any) -> None:
        super().__init__(client_app or private_client(plan.task, plan.config), plan.config.clients, {})
        self.folder = folder
        self.names = {node_id: f"hospital-{i}" for i, node_id in enumerate(self.get_node_ids())}
        self.keys = {name: _keys(folder, name) for name in self.names.values()}
        for node_id, name in self.names.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            node = {"folder": str(folder / name), "client-id": name, "key": str(self.keys[name].private_key)}
            server = {"server-key": server_public_key(server_key(plan.config.signing_key_file))}
            budget = {"epsilon": plan.config.epsilon, "delta": plan.config.delta}
            self._contexts[node_id] = Context(1, node_id, node | server | budget | own, RecordDict(), {})

    def get_nodes(self):
        return [NodeInfo(node_id=i, name=name, public_key=pem(self.keys[name])) for i, name in self.names.items()]

    def node(self, name: str) -> UserConfig:
        """A client's own node configuration, which may be changed."""
        return next(self._contexts[i].node_config for i, its in self.names.items() if its == name)

    def guard(self, plan: TrainingPlan, name: str) -> Guard:
        """A client's own book."""
        return Guard(self.folder / name / GUARD, plan.config.budget)


def deployed_plan(folder: Path, task=None, **settings: Any) -> TrainingPlan:
    """A plan for three clients, whose ledger and signing key lie in a folder."""
    given = {"clients": 3, "seed": None, "rounds": 3, "ledger": f"sqlite:///{folder}/ledger.db"}
    return plan_of(task or BLOBS, **given | {"signing_key": str(folder / "server.key")} | settings)


def start(plan, grid, **kwargs):
    """The finished strategy of a run with deployed clients, with its records."""
    return run(plan, grid=grid, **kwargs)


def charged(plan: TrainingPlan, grid: DeployedGrid, name: str):
    """A client's charge, the same in both books."""
    history = history_of(plan.config.ledger, name, plan.task.dataset)
    assert history == grid.guard(plan, name).history()
    return history


def _keys(folder: Path, name: str) -> ClientKeys:
    """A client's keys; those of an earlier life, if it had one."""
    (folder / "keys").mkdir(parents=True, exist_ok=True)
    made = ClientKeys(name, folder / "keys" / f"{name}.key", folder / "keys" / f"{name}.pub")
    return made if made.private_key.exists() else write_client_key(folder / "keys", name)
