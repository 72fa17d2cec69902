"""What a run will cost every client, before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedprivacy.accounting import FILTERS, pld
from fedprivacy.config import ConfigError, RunConfig, Value, resolve
from fedprivacy.events import Event, History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.identity import dataset_id, simulated_client_id
from fedprivacy.ledger import Ledger
from fedprivacy.tasks import Task, load_task


@dataclass(frozen=True)
class RunPlan:
    """The public numbers of a run: the event of a local step, and what follows from it.

    Attributes:
        config: the run's configuration.
        task: its task.
    """

    config: RunConfig
    task: Task

    @classmethod
    def of(cls, given: Mapping[str, Value | None], task: Task | None = None) -> RunPlan:
        """The plan of a configuration by hyphenated key, for example of Flower's `context.run_config`.

        Raises:
            ConfigError: lists everything that is wrong with the configuration, or says why no noise meets the budget.
        """
        config = resolve(given, task)
        plan = cls(config, task or load_task(config.task))
        try:
            _ = plan.event
        except ValueError as error:
            raise ConfigError([str(error)]) from error
        return plan

    @cached_property
    def event(self) -> PoissonSampledGaussian:
        """What one local step costs: with the configured noise, or the least noise that the budget allows."""
        sigma = self.config.noise_multiplier
        if sigma is None:
            sigma = FILTERS[self.config.filter](self.config.budget).noise_multiplier(
                self.config.sampling_rate, self.total_steps, self.relation
            )
        return PoissonSampledGaussian(self.config.sampling_rate, sigma, self.relation)

    @property
    def relation(self) -> NeighbouringRelation:
        """Zero-out where shard sizes are public, else add-or-remove-one."""
        public = self.task.shard_sizes_public
        return NeighbouringRelation.ZERO_OUT if public else NeighbouringRelation.ADD_OR_REMOVE_ONE

    @property
    def total_steps(self) -> int:
        """Local steps of a client that joins every round."""
        return self.config.rounds * self.config.local_steps

    def steps_by_round(self, past: History) -> NDArray[np.int64]:
        """Steps taken after each round by a client with this past that joins until its budget is spent."""
        quota = FILTERS[self.config.filter](self.config.budget).quota(past, self.event)
        rounds = np.arange(1, self.config.rounds + 1)
        return np.asarray(np.minimum(rounds * self.config.local_steps, quota))

    def epsilon_by_round(self, past: History) -> NDArray[np.float64]:
        """Privacy loss after each round of a client with this past, shape [rounds]."""
        return pld.epsilons(self.event, self.steps_by_round(past).tolist(), self.config.delta, past=past)

    def shard_size(self, disclosed: int) -> float:
        """The public size of a shard: what the client disclosed if sizes are public, else the task's public guess.

        At least 1: a client whose shard is empty still sends noise, and nothing may be divided by zero.
        """
        public = disclosed if self.task.shard_sizes_public else self.task.nominal_shard_size
        return float(max(public or 0, 1))

    def weight(self, disclosed: int) -> float:
        """The public weight of a client's update in the average: its shard size if public, else 1."""
        return self.shard_size(disclosed) if self.task.shard_sizes_public else 1.0


def client_groups(plan: RunPlan) -> list[tuple[list[str], History]]:
    """Simulated clients with the same past on the run's ledger, and that past."""
    clients = [simulated_client_id(number, plan.config.clients) for number in range(plan.config.clients)]
    if not Ledger.exists(plan.config.ledger):
        return [(clients, {})]
    datasets = {client_id: dataset_id(plan.task, client_id) for client_id in clients}
    accounts = Ledger(plan.config.ledger).accounts(list(datasets.values()))
    groups: dict[frozenset[tuple[Event, int]], list[str]] = {}
    for client_id, dataset in datasets.items():
        past = accounts[dataset].history if dataset in accounts else {}
        groups.setdefault(frozenset(past.items()), []).append(client_id)
    return [(names, dict(past)) for past, names in groups.items()]
