"""What a client owns: its name, its shard, its device, its guard and its randomness.

In a simulation it holds a part of the task's own split, and a seed makes it repeatable. In a deployment it reads its
own folder, answers to its own guard, and its randomness is never seeded: a server that could choose the noise could
subtract it. Which of the two it is, `fedprivacy.flower.client.place` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app.user_config import UserConfig
from torch import Tensor

from fedprivacy._support.failpoints import reach
from fedprivacy.flower.client.node import NodeSettings, Refused
from fedprivacy.flower.client.release import Released
from fedprivacy.flower.wire.crossing import MessageError
from fedprivacy.flower.wire.histories import claims_text, history_of
from fedprivacy.flower.wire.messages import Enrolment, Grant, RefusalCode
from fedprivacy.gradients import GradientEngine, check_on_blank
from fedprivacy.guard import Guard, LogError
from fedprivacy.runs.configuration import ConfigError, RunConfig
from fedprivacy.runs.device import choose_device
from fedprivacy.tasks import ShardSource, Task, relation_of
from fedprivacy.tasks.identity import dataset_id, simulated_client_id
from fedprivacy.tasks.protocol import Shard
from fedprivacy.training.adaptive import CLIPPINGS
from fedprivacy.training.keystream import Keystream
from fedprivacy.values.events import PoissonSampledGaussian

IN_PROCESS = "fedprivacy-in-process"
"""Key that our in-process engine sets in the node configuration of its clients."""


@dataclass(frozen=True, slots=True)
class LocalClient:
    """One client, as its own process sees it.

    Attributes:
        client_id: the name that it enrols with.
        task: model, loss and data.
        shard: its records, on its device.
        guard: its own book, which charges before a record is read and knows what was sealed; None in a simulation,
            where the ledger of the run is the only book.
        key: signs receipts; the one with which the SuperNode authenticates. None in a simulation.
        seed: of the simulation; None: secret randomness.
        num_partitions: into how many parts the simulation splits the records; 0 in a deployment.
    """

    client_id: str
    task: Task
    shard: Shard
    guard: Guard | None
    key: EllipticCurvePrivateKey | None
    seed: int | None
    num_partitions: int

    def check_relation(self, grant: Grant) -> None:
        """Refuse a grant whose guarantee is for other neighbours than what this client discloses allows.

        Raises:
            MessageError: sizes are public and the grant's relation hides them, or the other way round.
        """
        relation = relation_of(self.task)
        if grant.relation is not relation:
            raise MessageError(f"The grant is for {grant.relation}; with what this task makes public it is {relation}.")

    def public_facts(self) -> Enrolment:
        """What the client says of itself; with what its own guard holds of grants, where it has one."""
        runs = self.guard.by_run() if self.guard is not None else {}
        charged = ((run, event, steps) for run, events in runs.items() for event, steps in events.items())
        claims = {(run, event): steps for run, event, steps in charged if isinstance(event, PoissonSampledGaussian)}
        spent = claims_text(claims) if claims else ""
        return Enrolment(self.client_id, self.public_shard_size or 0, self.num_partitions, spent)

    def released_before(self, grant: Grant) -> Released | None:
        """What was sealed for a grant: it is paid for, and sent again for free. Raises what `Guard.sealed` does."""
        sealed = self.guard.sealed(grant.charged_as, run_key=grant.server_key) if self.guard is not None else None
        return None if sealed is None else Released.unsealed(sealed)

    def charge(self, grant: Grant) -> None:
        """Charge a grant to the client's own guard, if it has one, durably. Raises what `Guard.charge` does."""
        if self.guard is not None:
            elsewhere = history_of(grant.charged)
            self.guard.charge(grant.charged_as, grant.event, grant.steps, run_key=grant.server_key, elsewhere=elsewhere)
            reach("client.charged")

    def seal(self, grant: Grant, released: Released) -> None:
        """Keep what is about to leave. What cannot be kept does not leave: records were read, so the charge stands."""
        if self.guard is None:
            return
        try:
            self.guard.seal(grant.charged_as, released.sealed())
        except LogError as error:
            raise RuntimeError("The update was trained and cannot be sealed.") from error
        reach("client.sealed")

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


def open_simulated(task: Task, config: RunConfig, node: UserConfig) -> LocalClient:
    """The client that a simulation's node is."""
    partition_id, num_partitions = int(node["partition-id"]), int(node["num-partitions"])
    client_id = simulated_client_id(partition_id, num_partitions)
    shard = _simulated_shard(task, partition_id, num_partitions, config.device)
    return LocalClient(client_id, task, shard, None, None, config.seed, num_partitions)


def open_deployed(task: Task, settings: NodeSettings) -> LocalClient:
    """The client on a data owner's host.

    Raises:
        Refused: the device is not there, or the shard cannot be read.
        LogError: the guard cannot be used.
    """
    try:
        device = choose_device(settings.device)
    except ConfigError as error:
        raise Refused(RefusalCode.NODE_CONFIG_INVALID, f"--node-config: {error}") from error
    shard = _own_shard(task, settings.folder, device)
    guard = Guard(settings.guard, settings.budget, settings.filter)
    return LocalClient(settings.client_id, task, shard, guard, settings.key, None, 0)


@cache
def _simulated_shard(task: Task, partition_id: int, num_partitions: int, device: str) -> Shard:
    """Kept for the life of the process: data must not travel, or be split again, with every message."""
    source = ShardSource(partition_id=partition_id, num_partitions=num_partitions)
    return _checked(task, source, choose_device(device, partition_id))


@lru_cache(maxsize=1)
def _own_shard(task: Task, folder: Path, device: torch.device) -> Shard:
    return _checked(task, ShardSource(folder=folder), device)


@cache
def _engine(task: Task, device: torch.device, clipping: str) -> GradientEngine:
    """Kept for the life of the process: to choose and check how gradients are computed takes longer than a step."""
    model = task.model().to(device).train()
    return GradientEngine(model, task.loss, CLIPPINGS[clipping]())


def _checked(task: Task, source: ShardSource, device: torch.device) -> Shard:
    """The shard, once the task has worked on made-up records: what fails later is one record's fault.

    Raises:
        Refused: the task could not read it. It says so in one way, whatever went wrong.
    """
    try:
        shard = task.shard(source).to(device)
    except Exception as error:
        raise Refused(RefusalCode.CLIENT_FAILED, "The task could not read this client's shard.") from error
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
