"""What a run will cost every client, before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedprivacy.accounting import FILTERS, pld
from fedprivacy.ledger import NOTHING_SPENT, Ledger
from fedprivacy.runs.configuration import ConfigError, RunConfig, Value, resolve
from fedprivacy.tasks import ShardSource, Task, TaskError, load_task, relation_of
from fedprivacy.tasks.identity import dataset_id, simulated_client_id
from fedprivacy.tasks.loader import agreed
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian


@dataclass(frozen=True)
class RunPlan:
    """The public numbers of a run: what a local step costs a client, and what follows from it.

    Raises:
        ConfigError: the configuration names another task.
    """

    config: RunConfig
    task: Task

    def __post_init__(self) -> None:
        try:
            agreed(self.config.task, self.task)
        except TaskError as error:
            raise ConfigError([str(error)]) from error

    @classmethod
    def of(cls, given: Mapping[str, Value | None], task: Task | None = None) -> RunPlan:
        """The plan of a configuration by hyphenated key, for example of Flower's `context.run_config`.

        Raises:
            ConfigError: lists everything that is wrong with the configuration, or says why no noise meets the budget.
        """
        config = resolve(given, task)
        plan = cls(config, task or load_task(config.task))
        try:
            _ = plan.noise_multiplier
        except ValueError as error:
            raise ConfigError([str(error)]) from error
        return plan

    @cached_property
    def noise_multiplier(self) -> float:
        """Sigma of every local step: the configured one, or the least that the budget allows; 0 without privacy."""
        if not self.config.privacy:
            return 0.0
        if self.config.noise_multiplier is not None:
            return self.config.noise_multiplier
        kept = FILTERS[self.config.filter](self.config.budget)
        return kept.noise_multiplier(self.config.sampling_rate, self.total_steps, self.relation)

    def event(self, disclosed: int = 0) -> PoissonSampledGaussian:
        """What one local step costs a client that disclosed so many records.

        Raises:
            ValueError: the run is without privacy, so that no epsilon bounds what a step costs.
        """
        return PoissonSampledGaussian(self.sampling_rate(disclosed), self.noise_multiplier, self.relation)

    def sampling_rate(self, disclosed: int = 0) -> float:
        """q of a local step of a client; how many records it disclosed counts with a `batch_size` only."""
        if self.config.batch_size is None:
            return self.config.sampling_rate
        return min(1.0, self.config.batch_size / self.shard_size(disclosed))

    @property
    def relation(self) -> NeighbouringRelation:
        """Zero-out where shard sizes are public, else add-or-remove-one."""
        return relation_of(self.task)

    @property
    def total_steps(self) -> int:
        """Local steps of a client that joins every round."""
        return self.config.rounds * self.config.local_steps

    def steps_by_round(self, event: PoissonSampledGaussian, past: History) -> NDArray[np.int64]:
        """Steps taken after each round by a client with this past that joins until its budget is spent."""
        quota = FILTERS[self.config.filter](self.config.budget).quota(past, event)
        rounds = np.arange(1, self.config.rounds + 1)
        return np.asarray(np.minimum(rounds * self.config.local_steps, quota))

    def epsilon_by_round(self, event: PoissonSampledGaussian, past: History) -> NDArray[np.float64]:
        """Privacy loss after each round of a client with this past, shape [rounds]."""
        return pld.epsilons(event, self.steps_by_round(event, past).tolist(), self.config.delta, past=past)

    def shard_size(self, disclosed: int) -> float:
        """The public size of a shard: what the client disclosed if sizes are public, else the task's public guess.

        At least 1: a client whose shard is empty still sends noise, and nothing may be divided by zero.
        """
        public = disclosed if self.task.shard_sizes_public else self.task.nominal_shard_size
        return float(max(public or 0, 1))

    def weight(self, disclosed: int) -> float:
        """The public weight of a client's update in the average: its shard size if public, else 1."""
        return self.shard_size(disclosed) if self.task.shard_sizes_public else 1.0


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """Simulated clients that will spend alike: each local step costs `event`, after the same `past`."""

    client_ids: list[str]
    event: PoissonSampledGaussian
    past: History


def client_groups(plan: RunPlan) -> list[ClientGroup]:
    """Simulated clients with the same event, and the same past on the run's ledger."""
    clients = [simulated_client_id(number, plan.config.clients) for number in range(plan.config.clients)]
    datasets = {client_id: dataset_id(plan.task, client_id) for client_id in clients}
    accounts = Ledger(plan.config.ledger).accounts(list(datasets.values())) if Ledger.exists(plan.config.ledger) else {}
    sizes_count = plan.config.batch_size is not None and plan.task.shard_sizes_public  # else no shard is loaded
    groups: dict[tuple[Event, frozenset[tuple[Event, int]]], ClientGroup] = {}
    for number, (client_id, dataset) in enumerate(datasets.items()):
        shard = ShardSource(partition_id=number, num_partitions=plan.config.clients)
        event = plan.event(len(plan.task.shard(shard)) if sizes_count else 0)
        past = accounts.get(dataset, NOTHING_SPENT).history
        alike = groups.setdefault((event, frozenset(past.items())), ClientGroup([], event, past))
        alike.client_ids.append(client_id)
    return list(groups.values())
