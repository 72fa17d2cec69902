"""The simulated clients of a population, trained together in this process: no message, no copy of the model for each.

What a client does here is what `fedprivacy.flower.client.app` has it do for a grant, with the same randomness. There is
nobody to hide from: whoever runs the simulation owns every shard. So what a client would check of a hostile server's
message, and the server of a hostile client's, is left out; what protects the *figures* is not: charges come first, and
an update that is not finite is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedprivacy._support.allocator import keep_freed_memory
from fedprivacy._support.failpoints import reach
from fedprivacy._support.spans import spanned
from fedprivacy.flower.client.local import LocalClient, part_of
from fedprivacy.flower.wire.arrays import LARGEST
from fedprivacy.flower.wire.messages import Enrolment, RefusalCode
from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.runs.configuration import RunConfig
from fedprivacy.tasks import Task, load_task
from fedprivacy.training.adaptive import ADAPTIVE
from fedprivacy.training.cohort import CohortTraining, Portion, Trainee
from fedprivacy.training.keystream import Keystream
from fedprivacy.training.mechanisms import SampledGaussianSum
from fedprivacy.training.optimizers import build_optimizer
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import PoissonSampledGaussian

log = logging.getLogger("fedprivacy.client")


@dataclass(frozen=True, slots=True)
class Order:
    """What one client of a cohort may spend, and what it trains with: what a grant says to it.

    Attributes:
        part: of the task's split.
        event: what a local step costs.
        clipping_norm: with which it begins.
        expected_batch_size: public divisor of the noisy sums.
        steps: local steps.
        weight: of its update in the average, public.
    """

    client_id: str
    part: int
    event: PoissonSampledGaussian
    clipping_norm: float
    expected_batch_size: float
    steps: int
    weight: float


@dataclass(slots=True)
class CohortUpdate:
    """What a cohort's updates add up to. Nothing in it grows with the number of clients but their names.

    Attributes:
        names: of the trained parameters, in the order in which the model has them; empty: nobody trained.
        total: of these, each client's times its weight, flat, float64; None: nobody trained.
        weight: the sum of these weights.
        clipping_norms: that the next step of each client would have, by client_id: of all that have trained.
        failures: why others have no usable update, as a constant code, by client_id.
    """

    names: tuple[str, ...] = ()
    total: Tensor | None = None
    weight: float = 0.0
    clipping_norms: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @spanned("adding updates")
    def add(self, orders: Sequence[Order], portion: Portion) -> None:
        """Take in what some clients release."""
        weights = torch.tensor(
            [order.weight for order in orders], dtype=torch.float64, device=portion.parameters.device
        )
        usable = portion.parameters.abs().amax(1) <= LARGEST  # false of NaN
        for order, norm, use in zip(orders, portion.clipping_norms, usable.tolist(), strict=True):
            self.clipping_norms[order.client_id] = norm
            if not use:
                self.failures[order.client_id] = "not-finite"
        kept = weights.where(usable, 0.0)
        summed = _weighted(
            portion.parameters if bool(usable.all()) else portion.parameters.where(usable.unsqueeze(1), 0.0), kept
        )
        self.total = summed if self.total is None else self.total.add_(summed.to(self.total.device))
        self.weight += float(kept.sum())


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """The sum of rows [n, d] times weights [n], float64."""
    if len(rows) == 1:
        return rows[0].double().mul_(weights)
    return weights @ rows.double()


class Population:
    """All simulated clients of a run.

    Args:
        task: that the app brings; None: the one that the configuration names.
        config: of the run.
    """

    def __init__(self, task: Task | None, config: RunConfig) -> None:
        self._task = task or load_task(config.task)
        self._config = config

    def enrolments(self) -> Iterator[Enrolment]:
        """What every client would say of itself, in the order of the split."""
        return (self._client(part).public_facts() for part in range(self._config.clients))

    def check(self, arrays: ArrayRecord) -> None:
        """Refuse a global model that is not the task's, before anybody is charged for training it.

        Raises:
            ValueError: names what it has, and should not have, or lacks.
        """
        if other := self._names ^ arrays.keys():
            raise ValueError(
                f"The global model is not the task's: '{min(other)}' is in one of them alone. Give initial_arrays the "
                "trained parameters of the task's own model, or leave it open."
            )

    @cached_property
    def _names(self) -> set[str]:
        return set(trainable_parameters(self._task.model()))

    def train(
        self, orders: Sequence[Order], arrays: ArrayRecord, attempt: Attempt, earlier_runs: int, proximal_mu: float
    ) -> CohortUpdate:
        """Train a cohort from the global model.

        Args:
            orders: one for each client.
            arrays: the global model.
            attempt: what was charged for this.
            earlier_runs: runs that the ledger held before this one.
            proximal_mu: FedProx's pull.
        """
        update, seed = CohortUpdate(), self._config.seed
        base = Keystream.secret() if seed is None else Keystream.from_seed(seed, "", earlier_runs, attempt.attempt)
        keep_freed_memory()
        for clients in self._by_device(orders, update):
            engine = self._engine(clients[0][1], arrays)
            update.names = tuple(trainable_parameters(engine.model))
            training = self._training(engine, proximal_mu)
            trainees = [_trainee(order, client, base) for order, client in clients]
            for portion in training.train(trainees, attempt.round):
                asked = [clients[place][0] for place in portion.places]
                reach("client.trained")
                if portion.problem is None:
                    update.add(asked, portion)
                else:
                    for order in asked:
                        _failed(order, portion.problem, update)
        return update

    def _by_device(self, orders: Iterable[Order], update: CohortUpdate) -> Iterable[list[tuple[Order, LocalClient]]]:
        """The clients that have records, by the device on which these are."""
        found: dict[torch.device, list[tuple[Order, LocalClient]]] = {}
        for order in orders:
            try:
                client = self._client(order.part)
            except Exception as problem:
                _failed(order, problem, update)
            else:
                found.setdefault(client.shard.inputs.device, []).append((order, client))
        return found.values()

    def _client(self, part: int) -> LocalClient:
        return part_of(self._task, self._config, part, self._config.clients)

    @spanned("preparing")
    def _engine(self, client: LocalClient, arrays: ArrayRecord) -> GradientEngine:
        """What computes the gradients of the clients on one device, at the global model."""
        engine = client.engine(self._config.clipping)
        model: Mapping[str, Tensor] = arrays.to_torch_state_dict()
        engine.model.load_state_dict({name: model[name] for name in trainable_parameters(engine.model)}, strict=False)
        engine.prepare(client.shard.inputs[:0], client.shard.targets[:0])
        return engine

    def _training(self, engine: GradientEngine, proximal_mu: float) -> CohortTraining:
        config = self._config
        optimizer = build_optimizer(
            config.optimizer, config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
        )
        adaptive = ADAPTIVE.get(config.clipping)
        return CohortTraining(engine, optimizer, proximal_mu, adaptive() if adaptive else None)


def _trainee(order: Order, client: LocalClient, base: Keystream) -> Trainee:
    mechanism = SampledGaussianSum(order.event, order.clipping_norm)
    keystream = base.of(client.dataset_id)
    return Trainee(client.shard, keystream, mechanism, order.expected_batch_size, order.steps)


def _failed(order: Order, problem: Exception, update: CohortUpdate) -> None:
    log.error("Client %s sends no update (%s).", order.client_id, RefusalCode.CLIENT_FAILED, exc_info=problem)
    update.failures[order.client_id] = RefusalCode.CLIENT_FAILED.value
