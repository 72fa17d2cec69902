"""Asks the real ClientApp as a server would, about records that the auditor chooses.

What is audited is what runs: the message that a server would send goes in, and every byte that comes back is what would
have left. Only the shard is the auditor's, and in a simulated client the key of the randomness: two clients with one
key draw the same samples and the same noise, so that what differs between their replies is what their records differ
by.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import nn

from fedprivacy.accounting import pld
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.client.local import IN_PROCESS
from fedprivacy.flower.wire.messages import GRANT, RECEIPT, Grant, Receipt
from fedprivacy.gradients import trainable_parameters
from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.tasks import Shard, ShardSource, Task, relation_of
from fedprivacy.tasks.identity import dataset_id, simulated_client_id
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.training.algorithms import FedAvg, text_of
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import RECORD, Unit

_NODE = 7
"""Number of the client's node; any will do."""

_HEADROOM = 2.0**10
"""Factor by which a sum of norm C outweighs the parameters that it moves: their rounding then hides nothing of it."""

_SPLIT = 100_001
"""Number of parts that the first of the auditor's shards is one of; each further shard is one of one part more. A
client's name stays the same up to a million parts, and so does its randomness, which is drawn under that name."""

USUAL = Grant(
    run_id="audit",
    client_id=simulated_client_id(0, _SPLIT),
    round=1,
    attempt=1,
    steps=1,
    sampling_rate=1.0,
    noise_multiplier=1.0,
    relation=NeighbouringRelation.ADD_OR_REMOVE_ONE,
    unit=str(RECORD),
    clipping_norm=1.0,
    clipping="flat",
    expected_batch_size=1.0,
    optimizer="sgd",
    learning_rate=1.0,
    momentum=0.0,
    weight_decay=0.0,
    algorithm=text_of(FedAvg()),  # sends all that the steps release, of which others keep a part back
    augmentation_multiplicity=0,
    local_evaluation=False,
    earlier_runs=0,
    charged="",
    server_key="",
)


class NoUpdateError(RuntimeError):
    """A client that sent no update for the auditor's grant."""


class WithShard:
    """A task in all but its records, which are the auditor's.

    One task may have several shards, told apart by the number of parts that they are one of: what is kept for a task,
    such as its gradient engine, then serves them all.
    """

    def __init__(self, task: Task, shard: Shard) -> None:
        self._task = task.original if isinstance(task, OpenedTask) else task
        self._shards = [shard]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def add(self, shard: Shard) -> int:
        """Keep another shard; returns the number of its parts."""
        self._shards.append(shard)
        return _SPLIT + len(self._shards) - 1

    def shard(self, source: ShardSource) -> Shard:
        """The auditor's records, whichever part is asked for."""
        return self._shards[(source.num_partitions or _SPLIT) - _SPLIT]


@dataclass(frozen=True, slots=True)
class SentUpdate:
    """Update that a client sent for a grant.

    Attributes:
        moved: the trained parameters less the ones that were sent, by name, in float64.
        receipt: the client's statement of what it spent.
    """

    moved: Mapping[str, NDArray[np.float64]]
    receipt: Receipt

    @property
    def flat(self) -> NDArray[np.float64]:
        """All of `moved`, in the order of the parameters, shape [d]."""
        return np.concatenate([part.ravel() for part in self.moved.values()])


class RealClient:
    """A ClientApp in a place of its own, which is asked with real messages.

    Args:
        app: what runs.
        context: Flower's, which says where.
    """

    def __init__(self, app: ClientApp, context: Context) -> None:
        self._app, self._context = app, context
        InProcessGrid(app, 1, {})  # sets the identity of the process, which Flower's messages read

    def send(self, message_type: str, content: RecordDict) -> Message:
        """The client's reply."""
        return self._app(Message(content, _NODE, message_type), self._context)

    def ask(self, grant: Grant, parameters: Mapping[str, NDArray[Any]]) -> Message:
        """The reply to a grant and a global model."""
        arrays = ArrayRecord({name: Array(values) for name, values in parameters.items()})
        return self.send(MessageType.TRAIN, RecordDict({GRANT: grant.to_record(), "arrays": arrays}))

    def answer(self, grant: Grant, parameters: Mapping[str, NDArray[Any]]) -> SentUpdate:
        """Return the update that was trained for a grant and a global model.

        Raises:
            NoUpdateError: the client sent none.
        """
        reply = self.ask(grant, parameters)
        if RECEIPT not in reply.content.config_records:
            raise NoUpdateError(f"The client refused the auditor's grant: {dict(reply.content.config_records)}.")
        (arrays,) = reply.content.array_records.values()
        trained = {name: array.numpy().astype(np.float64) for name, array in arrays.items()}
        moved = {name: trained[name] - np.asarray(values, dtype=np.float64) for name, values in parameters.items()}
        return SentUpdate(moved, Receipt.of(reply))


class AskedClient(RealClient):
    """One simulated client of a task.

    Args:
        task: model, loss and what it makes public.
        shard: its records, instead of the task's own.
        seed: of its randomness; None: secret, as in a deployment.
        device, autocast: where it trains, and its type of activations, as in a run's configuration.
    """

    def __init__(
        self, task: Task, shard: Shard, *, seed: int | None = None, device: str = "cpu", autocast: str = "float32"
    ) -> None:
        self._shards = WithShard(task, shard)
        self.task = open_task(task=cast(Task, self._shards))
        config = resolve({"clients": 1, "seed": seed, "device": device, "autocast": autocast}, self.task)
        super().__init__(private_client(self.task, config), _context(0, _SPLIT))

    def holding(self, shard: Shard) -> AskedClient:
        """The same client with other records: the gradient engine and the key of the randomness are the same."""
        other = copy.copy(self)
        other._context = _context(int(self._context.node_config["partition-id"]), self._shards.add(shard))
        return other

    def colleague(self) -> AskedClient:
        """Another client of the same run, with the same records."""
        other = copy.copy(self)
        parts = int(self._context.node_config["num-partitions"])
        other._context = _context(int(self._context.node_config["partition-id"]) + 1, parts)
        return other

    def usual_grant(self) -> Grant:
        """A grant for one step on all records, after which the parameters have moved by the noisy sum, negated."""
        return self.for_own_unit(replace(USUAL, relation=relation_of(self.task)))

    def for_own_unit(self, grant: Grant) -> Grant:
        """The same grant for the unit of this client's task: a task of the auditor's own protects rows."""
        return replace(grant, unit=str(self.task.unit))

    def ask(self, grant: Grant, parameters: Mapping[str, NDArray[Any]]) -> Message:
        """The reply to a grant, for the unit of this client's task, and a global model."""
        return super().ask(self.for_own_unit(grant), parameters)


def _context(part: int, parts: int) -> Context:
    node: UserConfig = {"partition-id": part, "num-partitions": parts, IN_PROCESS: True}
    return Context(run_id=1, node_id=_NODE, node_config=node, state=RecordDict(), run_config={})


def new_parameters(task: Task, seed: int) -> dict[str, NDArray[Any]]:
    """The parameters of a new model of a task, by name: always the same for one seed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return parameters_of(task.model())


def parameters_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    """A model's trainable parameters, as a server sends them."""
    return {name: parameter.detach().cpu().numpy() for name, parameter in trainable_parameters(model).items()}


def gain(parameters: Mapping[str, NDArray[Any]], move: float) -> float:
    """Return the factor on a move of parameters with which their rounding hides nothing of it, a power of two.

    Args:
        parameters: the parameters that are moved, by name.
        move: distance by which a sum as long as the clipping norm moves them.
    """
    largest = max((float(np.abs(values).max(initial=0.0)) for values in parameters.values()), default=0.0)
    return 2.0 ** max(math.ceil(math.log2(max(largest, 1e-9) * _HEADROOM / move)), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedTraining:
    """Training that a client is granted, and the privacy that is claimed for it.

    Attributes:
        event: mechanism of each step.
        steps: T, over all rounds.
        delta: of the claim.
        clipping_norm: C.
        clipping: how a record's gradient is bounded by C, as in a run's configuration.
        expected_batch_size: divisor of the noisy sums.
        learning_rate: of the local steps, by plain SGD: another optimiser only post-processes what SGD shows.
        weight_decay: of the local steps.
        unit: of privacy.
        autocast: the client's type of activations, as in a run's configuration.
    """

    event: PoissonSampledGaussian
    steps: int
    delta: float
    clipping_norm: float
    clipping: str = "flat"
    expected_batch_size: float = 1.0
    learning_rate: float = 1.0
    weight_decay: float = 0.0
    unit: Unit = RECORD
    autocast: str = "float32"

    @property
    def epsilon(self) -> float:
        """The epsilon that the accountant states for it at `delta`, an upper bound."""
        return pld.epsilon({self.event: self.steps}, self.delta)

    def step_grant(self, usual: Grant) -> Grant:
        """A grant for one of its steps, in the first round."""
        return replace(
            usual,
            sampling_rate=self.event.sampling_rate,
            noise_multiplier=self.event.noise_multiplier,
            relation=self.event.relation,
            clipping_norm=self.clipping_norm,
            clipping=self.clipping,
            expected_batch_size=self.expected_batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )


class ObservedClient:
    """One client of a task whose releases are read, and whose key the auditor chose.

    Each step is a round of its own, at the same parameters, so that a reading is of one release. The server may grant
    that, and the accountant charges it like any other step.

    Its learning rate is raised until rounding of the parameters, which may be large, can hide no noise.

    Args:
        task: model and loss; its relation is the training's.
        shard: its records, at least one.
        training: what it is granted.
        parameters: the global model of every step, by name.
        seed: of its randomness.
        device: where it trains, as in a run's configuration.
    """

    def __init__(
        self,
        task: Task,
        shard: Shard,
        training: AuditedTraining,
        parameters: Mapping[str, NDArray[Any]],
        *,
        seed: int,
        device: str = "cpu",
    ) -> None:
        self._client = AskedClient(task, shard, seed=seed, device=device, autocast=training.autocast)
        grant = training.step_grant(self._client.usual_grant())
        move = grant.learning_rate * grant.clipping_norm / grant.expected_batch_size
        self._grant = replace(grant, learning_rate=grant.learning_rate * gain(parameters, move))
        self._parameters = parameters
        self._position = np.concatenate([values.ravel() for values in parameters.values()]).astype(np.float64)
        self._dataset = dataset_id(self._client.task, self._grant.client_id)
        self._seed, self._records = seed, len(shard.inputs)

    def release(self, step: int) -> NDArray[np.float64]:
        """Return the mechanism's release in a step, counted from 1: a noisy sum, in clipping norms, shape [d].

        Raises:
            RuntimeError: the client sent no update.
        """
        grant = replace(self._grant, round=step)
        gradient = -self._client.answer(grant, self._parameters).flat / grant.learning_rate
        gradient -= grant.weight_decay * self._position
        return np.asarray(gradient * (grant.expected_batch_size / grant.clipping_norm))

    def joined_records(self, step: int) -> NDArray[np.intp]:
        """Indices of the records that joined a step, as its sampler draws them from the auditor's key."""
        grant = self._grant
        keystream = Keystream.from_seed(self._seed, self._dataset, grant.earlier_runs, grant.attempt)
        return poisson_sample(grant.sampling_rate, self._records, keystream, Position(step, 1))
