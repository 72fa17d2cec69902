"""What a client owns: its name, its shard, its device, its odometer and its randomness.

Two kinds of places run a client. In a *simulation* (our in-process engine, or a Ray worker of Flower's) it holds a part
of the task's own split, and a seed makes it repeatable. In a *deployment* (a SuperNode on a data owner's host) it reads
its own folder, answers to its own odometer, and its randomness is never seeded: a server that could choose the noise
could subtract it. Which of the two it is, the client finds out from its own process and node configuration, never from
the server.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Context
from flwr.app.user_config import UserConfig
from torch import Tensor

from fedprivacy import signing
from fedprivacy.accounting import DEFAULT_FILTER
from fedprivacy.budget import PrivacyBudget
from fedprivacy.config import RunConfig
from fedprivacy.device import choose_device
from fedprivacy.dpsgd import Shard
from fedprivacy.flower.records import Grant, RefusalCode
from fedprivacy.flower.wire import RecordError
from fedprivacy.gradients import AutomaticClipping, FlatClipping, GradientEngine, PerLayerClipping, check_on_blank
from fedprivacy.identity import dataset_id, simulated_client_id
from fedprivacy.keystream import Keystream
from fedprivacy.odometer import Odometer
from fedprivacy.tasks import ShardSource, Task

log = logging.getLogger("fedprivacy.client")

IN_PROCESS = "fedprivacy-in-process"
"""Key that our in-process engine sets in the node configuration of its clients."""

ODOMETER = "odometer.log"
"""Name of the odometer's file, in the client's data folder unless --node-config names another."""

MOST_STEPS = 100_000
"""Local steps that one grant may ask for, unless --node-config says otherwise."""


class Refused(Exception):
    """The client will not train; carries the code that crosses."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        self.code = code
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Guard:
    """What a deployed client trusts instead of a server.

    Attributes:
        odometer: charges before a record is read, and knows what was sealed.
        key: signs receipts; the one with which the SuperNode authenticates.
        server_key: the only key whose grants count, Ed25519 in hexadecimal; empty: a run's first one.
        most_steps: in one grant; more would keep this host busy for a server's pleasure.
    """

    odometer: Odometer
    key: EllipticCurvePrivateKey
    server_key: str
    most_steps: int

    def check(self, grant: Grant) -> None:
        """Refuse what no server that this client trusts would ask for.

        Raises:
            RecordError: another server signed the grant, or nobody did, or it asks for too many steps.
        """
        signed = signing.signed_by_server(grant.server_key, signing.GRANT, grant.signed_bytes(), grant.signature)
        if not signed or self.server_key not in ("", grant.server_key):
            raise RecordError("The grant is not signed by the server that this client trusts (server-key).")
        if grant.steps > self.most_steps:
            raise RecordError(
                f"The grant asks for {grant.steps} steps; this client takes {self.most_steps} (most-steps)."
            )


@dataclass(frozen=True, slots=True)
class LocalClient:
    """One client, as its own process sees it.

    Attributes:
        client_id: the name that it enrols with.
        task: model, loss and data.
        shard: its records, on its device.
        guard: its odometer and keys; None in a simulation, where the ledger of the run is the only book.
        seed: of the simulation; None: secret randomness.
        num_partitions: into how many parts the simulation splits the records; 0 in a deployment.
    """

    client_id: str
    task: Task
    shard: Shard
    guard: Guard | None
    seed: int | None
    num_partitions: int

    def keystream(self, grant: Grant) -> Keystream:
        """Its randomness for one round: fresh and kept nowhere, unless a simulation is seeded."""
        if self.seed is None:
            return Keystream.secret()
        dataset = dataset_id(self.task, self.client_id)
        return Keystream.from_seed(self.seed, dataset, grant.earlier_runs, grant.attempt)

    def engine(self, clipping: str) -> GradientEngine:
        """Computes the clipped sums of its gradients. Clients of one process share it: load parameters before use."""
        return _engine(self.task, self.device, clipping)

    @property
    def device(self) -> torch.device:
        """Where the shard lies."""
        return self.shard.inputs.device

    @property
    def public_shard_size(self) -> int | None:
        """Number of records if the task declares it public."""
        return len(self.shard) if self.task.shard_sizes_public else None


def open_client(task: Task, config: RunConfig, context: Context) -> LocalClient:
    """The client of a Flower context.

    Raises:
        Refused: a seed in a deployment, or a deployment without an odometer or a key.
    """
    node = context.node_config
    if is_simulated(node):
        return _simulated(task, config, int(node["partition-id"]), int(node["num-partitions"]))
    if config.seed is not None:
        raise Refused(RefusalCode.SEED_IN_DEPLOYMENT, "seed is set: whoever knows it can subtract the noise. Unset it.")
    missing = [key for key in ("folder", "epsilon", "delta") if key not in node]
    if missing:
        raise Refused(
            RefusalCode.NO_ODOMETER,
            f"--node-config lacks {', '.join(missing)}; name the data folder and this client's own budget.",
        )
    folder = Path(str(node["folder"]))
    client_id = str(node.get("client-id", folder.name))
    return LocalClient(client_id, task, _own_shard(task, folder, config.device), _guard(node, folder), None, 0)


def is_simulated(node: UserConfig) -> bool:
    """Whether this process simulates the client: in our in-process engine, or in a worker of Ray."""
    ray = sys.modules.get("ray")
    return "partition-id" in node and (IN_PROCESS in node or (ray is not None and ray.is_initialized()))


def _simulated(task: Task, config: RunConfig, partition_id: int, num_partitions: int) -> LocalClient:
    client_id = simulated_client_id(partition_id, num_partitions)
    shard = _simulated_shard(task, partition_id, num_partitions, config.device)
    return LocalClient(client_id, task, shard, None, config.seed, num_partitions)


def _guard(node: UserConfig, folder: Path) -> Guard:
    if "key" not in node:
        raise Refused(
            RefusalCode.NO_KEY,
            "--node-config lacks key; name the file that --auth-supernode-private-key names: it signs the receipts.",
        )
    try:
        key = signing.client_key(Path(str(node["key"])))
    except signing.SigningKeyError as error:
        raise Refused(RefusalCode.NO_KEY, str(error)) from error
    budget = PrivacyBudget(float(node["epsilon"]), float(node["delta"]))
    file = Path(str(node.get("odometer", folder / ODOMETER)))
    odometer = Odometer(file, budget, str(node.get("filter", DEFAULT_FILTER)))
    if "server-key" not in node:
        log.warning("--node-config lacks server-key: whoever opens a run first is taken for its server.")
    return Guard(odometer, key, str(node.get("server-key", "")), int(node.get("most-steps", MOST_STEPS)))


@cache
def _simulated_shard(task: Task, partition_id: int, num_partitions: int, device: str) -> Shard:
    """Kept for the life of the process: data must not travel, or be split again, with every message."""
    source = ShardSource(partition_id=partition_id, num_partitions=num_partitions)
    return _checked(task, source, choose_device(device, partition_id))


@lru_cache(maxsize=1)
def _own_shard(task: Task, folder: Path, device: str) -> Shard:
    return _checked(task, ShardSource(folder=folder), choose_device(device))


_CLIPPINGS = {"per-layer": PerLayerClipping, "automatic": AutomaticClipping}


@cache
def _engine(task: Task, device: torch.device, clipping: str) -> GradientEngine:
    """Kept for the life of the process: to choose and check how gradients are computed takes longer than a step."""
    model = task.model().to(device).train()
    return GradientEngine(model, task.loss, _CLIPPINGS.get(clipping, FlatClipping)())


def _checked(task: Task, source: ShardSource, device: torch.device) -> Shard:
    """The shard, once the task has worked on made-up records: what fails later is one record's fault."""
    shard = task.shard(source).to(device)
    _check_once(task, device, _Kind.of(shard.inputs), _Kind.of(shard.targets))
    return shard


class _Kind(NamedTuple):
    """What of a shard's rows is public."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, rows: Tensor) -> _Kind:
        return cls(rows.shape[1:], rows.dtype)

    def none(self, device: torch.device) -> Tensor:
        """No rows of this kind."""
        return torch.empty(0, *self.shape, dtype=self.dtype, device=device)


@cache
def _check_once(task: Task, device: torch.device, inputs: _Kind, targets: _Kind) -> None:
    check_on_blank(task.model().to(device).train(), task.loss, inputs.none(device), targets.none(device))
