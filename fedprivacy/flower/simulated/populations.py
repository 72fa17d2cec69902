"""The simulated clients of a population, trained together in this process: no message, no copy of the model for each.

In place of messages, each client of a cohort gets an order, and all get one common start.

A client trains here as `fedprivacy.flower.client.client_app` lets it train for a grant, with the same randomness. No
party is hostile, since the owner of the simulation owns every shard. So the checks of messages from a hostile server or
client are left out. The checks that protect the *figures* are kept: charges come first, and an update that is not
finite is dropped.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedprivacy._support.failpoints import reach
from fedprivacy._support.native import keep_freed_memory
from fedprivacy.flower.client.local import LocalClient, part_of
from fedprivacy.flower.kept import KeptModels
from fedprivacy.flower.simulated.trial import opened_shard
from fedprivacy.flower.wire.messages import Enrolment, RefusalCode
from fedprivacy.flower.wire.payloads import LARGEST
from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.runs.settings.device import choose_device
from fedprivacy.tasks import Task
from fedprivacy.tasks.loader import open_task
from fedprivacy.training.adaptive import ADAPTIVE
from fedprivacy.training.algorithms import text_of
from fedprivacy.training.cohort import AnyMechanism, CohortTraining, PairwiseSum, Portion, StepMechanism, Trainee
from fedprivacy.training.optimizers import Optimizer, build_optimizer
from fedprivacy.values.attempt import Attempt

log = logging.getLogger("fedprivacy.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The training settings of one client of a cohort.

    Attributes:
        part: its part of the task's split.
        mechanism: the mechanism of a local step: with privacy it is the one that was charged for.
        expected_batch_size: public divisor of the sums.
        steps: local steps.
        weight: public weight of its update in the average.
        own: the vector that the client kept in its last round, shape [d]; None: nothing.
    """

    client_id: str
    part: int
    mechanism: StepMechanism
    expected_batch_size: float
    steps: int
    weight: float
    own: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The common start of all clients of a cohort.

    Attributes:
        arrays: the global model.
        round: the round's number.
        keystream: the round's key, from which each client derives a stream of its own.
        proximal_mu: FedProx's pull.
        control: the vector of the algorithm's server half, shape [d]; None: nothing.
    """

    arrays: ArrayRecord
    round: int
    keystream: Keystream
    proximal_mu: float
    control: Tensor | None = None

    def control_for(self, model: nn.Module) -> Tensor | None:
        """The control, on the model's device."""
        return None if self.control is None else self.control.to(next(model.parameters()).device)


TrainTogether = Callable[[RunConfig, Start, Sequence[Order], Sequence[LocalClient]], Iterator[Portion]]
"""Trains clients whose shards are on one device, each by its order, in portions."""


@dataclass(slots=True)
class CohortUpdate:
    """The sum of a cohort's updates. Apart from client_ids, nothing in it grows with the number of clients.

    Attributes:
        names: names of the trained parameters, in the model's order; empty: no client trained.
        sum: sum of these parameters, each client's times its weight, flat, float64, by the clients' ranks.
        weights: weights of the clients in it, by client_id.
        clipping_norms: clipping norm that the next step of each trained client would have, by client_id; infinite
            without clipping.
        failures: the reason why a client has no usable update, as a constant code, by client_id.
        kept: vectors that clients keep for their next round, by client_id, shape [d]: they are in no sum.
    """

    names: tuple[str, ...] = ()
    sum: PairwiseSum = field(default_factory=PairwiseSum)
    weights: dict[str, float] = field(default_factory=dict)
    clipping_norms: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def add(self, ranks: Sequence[int], orders: Sequence[Order], portion: Portion) -> None:
        """Take in what some clients release."""
        least, most = portion.parameters.amin(1), portion.parameters.amax(1)
        usable = (least >= -LARGEST) & (most <= LARGEST)  # false of NaN
        if portion.kept is not None:
            each = zip(orders, portion.kept.cpu(), usable.tolist(), strict=True)
            self.kept |= {order.client_id: row.clone() for order, row, use in each if use}
        for order, norm, use in zip(orders, portion.clipping_norms, usable.tolist(), strict=True):
            self.clipping_norms[order.client_id] = norm
            if use:
                self.weights[order.client_id] = order.weight
            else:
                self.failures[order.client_id] = "not-finite"
        rows = portion.parameters if bool(usable.all()) else portion.parameters.where(usable.unsqueeze(1), 0.0)
        weights = torch.tensor([[order.weight] for order in orders], dtype=torch.float64, device=rows.device)
        self.sum.add(ranks, rows.double().mul_(weights))

    def leave_out(self, rank: int, order: Order, problem: Exception) -> None:
        """Note that a client has failed."""
        log.error("Client %s sends no update (%s).", order.client_id, RefusalCode.CLIENT_FAILED, exc_info=problem)
        self.failures[order.client_id] = RefusalCode.CLIENT_FAILED.value
        self.sum.skip(rank)

    def join(self, other: CohortUpdate) -> None:
        """Take in what other clients of the cohort add up to."""
        self.names = self.names or other.names
        self.sum.join(other.sum)
        self.weights |= other.weights
        self.clipping_norms |= other.clipping_norms
        self.failures |= other.failures
        self.kept |= other.kept

    @property
    def weight(self) -> float:
        """The sum of the weights, exactly rounded: the same in any order."""
        return math.fsum(self.weights.values())

    def mean(self) -> Tensor:
        """The weighted average, flat, float64, of at least one client."""
        total = self.sum.total
        assert total is not None
        return total / self.weight


def train_privately(
    config: RunConfig, start: Start, orders: Sequence[Order], clients: Sequence[LocalClient]
) -> Iterator[Portion]:
    """DP-SGD, by a mechanism of each client's own; a `TrainTogether`."""
    one = clients[0]
    engine = _engine(config, one, start.arrays)
    adaptive = ADAPTIVE.get(config.clipping)
    training = CohortTraining(
        engine,
        optimizer_in(config, start.round),
        start.proximal_mu,
        config.algorithm_in(start.round),
        start.control_for(engine.model),
        one.views(config.augmentation_multiplicity),
        adaptive() if adaptive else None,
    )
    return training.train(trainees(orders, clients, start, SampledGaussianSum), start.round)


def _engine(config: RunConfig, client: LocalClient, arrays: ArrayRecord) -> GradientEngine:
    """Return the engine for gradients of the clients on one device, at the global model."""
    engine = client.engine(config.clipping, config.augmentation_multiplicity)
    load(engine.model, arrays)
    engine.prepare(*client.shard.blank)
    return engine


def trainees(
    orders: Sequence[Order], clients: Sequence[LocalClient], start: Start, kind: type[AnyMechanism]
) -> list[Trainee[AnyMechanism]]:
    """Return the clients with their mechanisms, each of one kind, and their shares of the round's randomness."""
    return [_trainee(order, client, start.keystream, kind) for order, client in zip(orders, clients, strict=True)]


def _trainee(order: Order, client: LocalClient, base: Keystream, kind: type[AnyMechanism]) -> Trainee[AnyMechanism]:
    assert isinstance(order.mechanism, kind)  # another was charged for, or nothing
    keystream = base.of(client.dataset_id)
    own = None if order.own is None else order.own.to(client.shard.inputs.device)
    return Trainee(client.shard, keystream, order.mechanism, order.expected_batch_size, order.steps, own)


def load(model: nn.Module, arrays: ArrayRecord) -> None:
    """Give a model the trained parameters of the global one."""
    values: Mapping[str, Tensor] = arrays.to_torch_state_dict()
    model.load_state_dict({name: values[name] for name in trainable_parameters(model)}, strict=False)


def optimizer_in(config: RunConfig, number: int) -> Optimizer:
    """Return the optimizer of the clients' local steps in a round."""
    rate = config.learning_rate_in(number)
    return build_optimizer(config.optimizer, rate, momentum=config.momentum, weight_decay=config.weight_decay)


class Population:
    """All simulated clients of a run.

    Args:
        task: the app's task; None: the one that the configuration names.
        config: the run's configuration.
        train: the function that trains clients on one device.
    """

    def __init__(self, task: Task | None, config: RunConfig, train: TrainTogether = train_privately) -> None:
        self._task, self._train = open_task(config.task, task), train
        first = str(choose_device("auto"))  # of several GPUs
        self._config = replace(config, device=first) if config.device == "auto" else config
        self.kept = KeptModels()

    def enrolments(self) -> Iterator[Enrolment]:
        """Yield every client's enrolment, in the order of the split.

        Raises:
            TaskError: the task cannot open a shard.
        """
        return self.enrol(range(self._config.clients))

    def enrol(self, parts: Iterable[int]) -> Iterator[Enrolment]:
        """Yield the enrolments of the clients with these parts of the split. Raises the errors of `enrolments`."""
        for part in parts:
            opened_shard(self._task, self._config, part)
            yield self._client(part).public_facts()

    def check(self, arrays: ArrayRecord) -> None:
        """Refuse a global model that is not the task's, before any client is charged for training it.

        Raises:
            ValueError: names a parameter that only one of them has.
        """
        if other := set(self.names) ^ arrays.keys():
            raise ValueError(
                f"The global model is not the task's: '{min(other)}' is in one of them alone. Give initial_arrays the "
                "trained parameters of the task's own model, or leave it open."
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order in which updates list them."""
        return tuple(trainable_parameters(self._task.model()))

    def train(  # noqa: PLR0917 - what a cohort needs
        self,
        orders: Sequence[Order],
        arrays: ArrayRecord,
        attempt: Attempt,
        earlier_runs: int,
        proximal_mu: float,
        control: Tensor | None = None,
    ) -> CohortUpdate:
        """Train a cohort from the global model; the population stores the vectors that its clients keep.

        Args:
            orders: one for each client.
            arrays: the global model.
            attempt: the attempt that was charged for this.
            earlier_runs: runs that the ledger held before this one.
            proximal_mu: FedProx's pull.
            control: the vector of the algorithm's server half; None: nothing.

        Raises:
            WorkerError: clients train in worker processes, and one died, as did the one that took its clients.
        """
        seed = self._config.seed
        base = Keystream.secret() if seed is None else Keystream.from_seed(seed, "", earlier_runs, attempt.attempt)
        start = Start(arrays, attempt.round, base, proximal_mu, control)
        own = self.kept.of(text_of(self._config.algorithm_in(attempt.round)))
        update = self.train_range(0, [replace(o, own=own.get(o.client_id)) for o in orders], start)
        own |= update.kept
        return update

    def warn_of_messages(self, reason: str) -> None:
        """Do nothing: clients get messages one after another in this process, and no workers were asked for."""

    def train_range(self, first: int, orders: Sequence[Order], start: Start) -> CohortUpdate:
        """Train consecutive clients of a cohort, beginning at the rank `first`."""
        update = CohortUpdate()
        keep_freed_memory()
        if clients := list(self._opened(enumerate(orders, first), update)):
            ranks, asked, opened = zip(*clients, strict=True)
            update.names = self.names
            for portion in self._train(self._config, start, asked, opened):
                reach("client.trained")
                own = portion.places
                if portion.problem is None:
                    update.add([ranks[place] for place in own], [asked[place] for place in own], portion)
                else:
                    for place in own:
                        update.leave_out(ranks[place], asked[place], portion.problem)
        return update

    def _opened(
        self, orders: Iterable[tuple[int, Order]], update: CohortUpdate
    ) -> Iterator[tuple[int, Order, LocalClient]]:
        """Yield the clients whose shards can be opened."""
        for rank, order in orders:
            try:
                yield rank, order, self._client(order.part)
            except Exception as problem:
                update.leave_out(rank, order, problem)

    def _client(self, part: int) -> LocalClient:
        return part_of(self._task, self._config, part, self._config.clients)
