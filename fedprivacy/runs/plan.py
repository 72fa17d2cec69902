"""What a run will cost every client, before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedprivacy.accounting import RunLimit, pld, shared_noise
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import without
from fedprivacy.ledger import NOTHING_SPENT, Allowance, Ledger
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
    goes_on: str = ""  # the run that goes on, by its run_id: what it was charged itself is not its past

    def __post_init__(self) -> None:
        try:
            agreed(self.config.task, self.task)
        except TaskError as error:
            raise ConfigError([str(error)]) from error

    @classmethod
    def of(cls, given: Mapping[str, Value | None], task: Task | None = None, *, goes_on: str = "") -> RunPlan:
        """The plan of a configuration by hyphenated key, for example of Flower's `context.run_config`.

        Raises:
            ConfigError: lists everything that is wrong with the configuration, or says why no noise meets the budget.
        """
        config = resolve(given, task)
        plan = cls(config, task or load_task(config.task), goes_on)
        try:
            _ = plan.noise_multiplier
        except ValueError as error:
            raise ConfigError([str(error)]) from error
        return plan

    @cached_property
    def noise_multiplier(self) -> float:
        """Sigma of every local step: the configured one, or the least that budgets, spend and the clients' pasts allow.

        See `fedprivacy.accounting.spend.shared_noise` for clients that have spent differently. 0 without privacy.
        """
        if not self.config.privacy:
            return 0.0
        if self.config.noise_multiplier is not None:
            return self.config.noise_multiplier
        standings: dict[object, RunLimit] = {}
        for client_id, standing in _standings(self).items():
            limit = self.limit(standing.past, standing.allowance, client_id)
            standings.setdefault((frozenset(standing.past.items()), standing.allowance), limit)
        limits = list(standings.values())
        return shared_noise(limits, self.config.sampling_rate, self.total_steps, self.relation)

    def limit(self, past: History, allowance: Allowance | None = None, client_id: str = "") -> RunLimit:
        """How far the run may go on a dataset with this past and allowance; None: what the run itself asks for."""
        allowance = allowance or self.config.allowance()
        return RunLimit(filter_of(allowance), past, self.config.most_spent, client_id)

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
        """What a client that joins every round is charged, in local steps."""
        return self.config.schedule.steps_until(self.config.rounds)

    def steps_by_round(
        self, event: PoissonSampledGaussian, past: History, allowance: Allowance | None = None
    ) -> NDArray[np.int64]:
        """Steps taken after each round by a client with this past that joins until its budget or the spend is spent."""
        quota = self.limit(past, allowance).quota(past, event)
        rounds = np.arange(1, self.config.rounds + 1)
        return np.asarray(np.minimum(self.config.schedule.steps_until(rounds), quota))

    def epsilon_by_round(
        self, event: PoissonSampledGaussian, past: History, allowance: Allowance | None = None
    ) -> NDArray[np.float64]:
        """Privacy loss after each round of a client with this past, at its budget's delta, shape [rounds]."""
        delta = (allowance or self.config.allowance()).budget.delta
        return pld.epsilons(event, self.steps_by_round(event, past, allowance).tolist(), delta, past=past)

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
    """Clients that will spend alike: each local step costs `event`, after the same `past`, within one `allowance`."""

    client_ids: list[str]
    event: PoissonSampledGaussian
    past: History
    allowance: Allowance


@dataclass(frozen=True, slots=True)
class _Standing:
    """How a client stands before the run: what it was charged, and what is allowed on its dataset."""

    past: History
    allowance: Allowance


def client_groups(plan: RunPlan) -> list[ClientGroup]:
    """The run's clients, those alike together: the simulated ones, or those of a deployment that the ledger knows."""
    sizes_count = plan.config.batch_size is not None and plan.task.shard_sizes_public  # else no shard is loaded
    groups: dict[tuple[Event, frozenset[tuple[Event, int]], Allowance], ClientGroup] = {}
    for number, (client_id, standing) in enumerate(_standings(plan).items()):
        shard = ShardSource(partition_id=number, num_partitions=plan.config.clients)
        event = plan.event(len(plan.task.shard(shard)) if sizes_count else 0)
        key = event, frozenset(standing.past.items()), standing.allowance
        alike = groups.setdefault(key, ClientGroup([], event, standing.past, standing.allowance))
        alike.client_ids.append(client_id)
    return list(groups.values())


def _standings(plan: RunPlan) -> dict[str, _Standing]:
    """How each client stands on the run's ledger, by client_id.

    The clients of a deployment have names of their own; those that its ledger knows stand for all. Where each client
    has a rate of its own, nothing is known of those before they come, and the simulated ones are meant.
    """
    simulated = [simulated_client_id(number, plan.config.clients) for number in range(plan.config.clients)]
    if not Ledger.exists(plan.config.ledger):
        return {client_id: _Standing({}, plan.config.allowance()) for client_id in simulated}
    ledger = Ledger(plan.config.ledger)
    records = dataset_id(plan.task, "")
    known = [dataset.removeprefix(records) for dataset in ledger.dataset_ids() if dataset.startswith(records)]
    deployed = known and not set(known) & set(simulated) and plan.config.batch_size is None
    datasets = {client_id: dataset_id(plan.task, client_id) for client_id in (known if deployed else simulated)}
    accounts, allowances = ledger.accounts(datasets.values()), ledger.allowances(datasets.values())
    own = ledger.accounts_in_run(plan.goes_on, datasets.values()) if plan.goes_on else {}
    usual = plan.config.allowance(next(iter(allowances.values()), None))
    return {
        client_id: _Standing(without(account.history, own.get(dataset, NOTHING_SPENT).history), allowance)
        for client_id, dataset in datasets.items()
        for account, allowance in [(accounts.get(dataset, NOTHING_SPENT), allowances.get(dataset, usual))]
    }
