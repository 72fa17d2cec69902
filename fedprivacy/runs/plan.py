"""What a run will cost every client, before it is run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedprivacy.accounting import RunLimit, pld, shared_noise
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import extended, without
from fedprivacy.ledger import NOTHING_SPENT, Allowance, Ledger
from fedprivacy.questions.codec import as_text
from fedprivacy.questions.moments import Spread
from fedprivacy.questions.standardise import standardise_question
from fedprivacy.runs.configuration import ConfigError, RunConfig, Value, resolve
from fedprivacy.runs.user_level import UserLevelPlan, user_level_plan
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
    asks: bool = False  # whether it is a run of questions: its one step reads every record
    solved: bool = False  # whether its noise was solved for the clients that it has, and keeps their spend already

    def __post_init__(self) -> None:
        try:
            agreed(self.config.task, self.task)
        except TaskError as error:
            raise ConfigError([str(error)]) from error

    @classmethod
    def of(
        cls, given: Mapping[str, Value | None], task: Task | None = None, *, goes_on: str = "", asks: bool = False
    ) -> RunPlan:
        """The plan of a configuration by hyphenated key, for example of Flower's `context.run_config`.

        Raises:
            ConfigError: lists everything that is wrong with the configuration, or says why no noise meets the budget;
                of a run that asks, `noise_multiplier` says that.
        """
        config = resolve(given, task)
        plan = cls(config, task or load_task(config.task), goes_on, asks)
        try:
            _ = plan.noise_multiplier, plan.user_level  # before anything is spent
        except ConfigError:
            if not asks:  # what was answered before can be read when nothing is left to spend
                raise
        return plan

    @cached_property
    def noise_multiplier(self) -> float:
        """Sigma of every local step: the configured one, or the least that budgets, spend and the clients' pasts allow.

        See `fedprivacy.accounting.spend.shared_noise` for clients that have spent differently. 0 without privacy.

        Raises:
            ConfigError: says why no noise meets the budget.
        """
        if not self.config.privacy:
            return 0.0
        if self.config.noise_multiplier is not None:
            return self.config.noise_multiplier
        try:
            return _solved(self, _standings(self))
        except ValueError as error:
            raise ConfigError([str(error)]) from error

    @cached_property
    def user_level(self) -> UserLevelPlan | None:
        """What the server's own noise makes of each round; None: it adds none.

        Raises:
            ConfigError: says why no noise meets the user-level budget, or that it does not allow one round.
        """
        return user_level_plan(self.config) if self.config.user_level else None

    def of_clients(self, client_ids: Collection[str]) -> RunPlan:
        """The same for these clients alone: where the noise is left open, it is what they need, and keeps the spend.

        Raises:
            ValueError: no noise is enough for any of them.
        """
        if self.config.noise_multiplier is not None or not client_ids:
            return self
        datasets = {client_id: dataset_id(self.task, client_id) for client_id in client_ids}
        noise_multiplier = _solved(self, _on_ledger(self, datasets))
        return replace(self, config=replace(self.config, noise_multiplier=noise_multiplier), solved=True)

    @cached_property
    def standardise(self) -> Spread | None:
        """The question by whose answer the task standardises its inputs; None: it does not.

        Raises:
            QuestionError: the task names something else.
        """
        return standardise_question(self.task)

    @cached_property
    def preliminary(self) -> RunPlan | None:
        """The plan of that question, which is asked once, before the first round; None: nothing is asked."""
        if self.asks or not self.config.privacy or self.standardise is None:
            return None
        config = replace(
            self.config,
            rounds=1,
            local_steps=1,
            local_evaluation=0,
            sampling_rate=1.0,
            batch_size=None,
            noise_multiplier=None,
            spend=self.config.question_spend,
            filter=self.config.filter or _known_allowance(self).filter,
        )
        return RunPlan(config, self.task, asks=True)

    @property
    def most_spent(self) -> float:
        """What else may limit the run besides budgets: how much of their epsilon it may take."""
        return math.inf if self.solved else self.config.most_spent

    def limit(self, past: History, allowance: Allowance | None = None, client_id: str = "") -> RunLimit:
        """How far the run may go on a dataset with this past and allowance; None: what the run itself asks for."""
        allowance = allowance or self.config.allowance()
        return RunLimit(filter_of(allowance), past, self.most_spent, client_id)

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

    def shard_size(self, disclosed: int, answered: float = 0.0) -> float:
        """The public size of a shard: what the client disclosed if sizes are public.

        Else what its private answer says, if there is one, and the task's public guess if there is none. At least 1: a
        client whose shard is empty still sends noise, and nothing may be divided by zero.
        """
        public = disclosed if self.task.shard_sizes_public else answered or self.task.nominal_shard_size
        return float(max(public or 0, 1))

    def weight(self, disclosed: int, answered: float = 0.0) -> float:
        """The public weight of a client's update in the average: its shard size if that is known, else 1."""
        known = self.task.shard_sizes_public or answered
        return self.shard_size(disclosed, answered) if known else 1.0


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """Clients that will spend alike: each local step costs `event`, after the same `past`, within one `allowance`.

    Where the task's own question is asked first, `question` is what it costs, and part of the past.
    """

    client_ids: list[str]
    event: PoissonSampledGaussian
    past: History
    allowance: Allowance
    question: PoissonSampledGaussian | None = None


@dataclass(frozen=True, slots=True)
class _Standing:
    """How a client stands before the run's first step: what it was charged, and what is allowed on its dataset."""

    past: History
    allowance: Allowance
    question: PoissonSampledGaussian | None = None


def client_groups(plan: RunPlan) -> list[ClientGroup]:
    """The run's clients, those alike together: the simulated ones, or those of a deployment that the ledger knows."""
    sizes_count = plan.config.batch_size is not None and plan.task.shard_sizes_public  # else no shard is loaded
    groups: dict[tuple[Event, frozenset[tuple[Event, int]], Allowance], ClientGroup] = {}
    for number, (client_id, standing) in enumerate(_standings(plan).items()):
        shard = ShardSource(partition_id=number, num_partitions=plan.config.clients)
        event = plan.event(len(plan.task.shard(shard)) if sizes_count else 0)
        key = event, frozenset(standing.past.items()), standing.allowance
        alike = groups.setdefault(key, ClientGroup([], event, standing.past, standing.allowance, standing.question))
        alike.client_ids.append(client_id)
    return list(groups.values())


def _standings(plan: RunPlan) -> dict[str, _Standing]:
    """How each client stands before the run's first step, by client_id: the task's own question counts as answered."""
    standings = _on_ledger(plan)
    if plan.preliminary is None or plan.standardise is None:
        return standings
    datasets = {client_id: dataset_id(plan.task, client_id) for client_id in standings}
    known = Ledger.exists(plan.config.ledger)
    answered = Ledger(plan.config.ledger).answers(as_text(plan.standardise), datasets.values()) if known else {}
    lacking = [client_id for client_id, dataset in datasets.items() if dataset not in answered]
    event = plan.preliminary.of_clients(lacking).event()
    return standings | {
        client_id: replace(standings[client_id], past=extended(standings[client_id].past, event, 1), question=event)
        for client_id in lacking
    }


def _solved(plan: RunPlan, standings: Mapping[str, _Standing]) -> float:
    """The noise multiplier that clients who stand so share; those who stand alike are asked once."""
    limits: dict[object, RunLimit] = {}
    for client_id, standing in standings.items():
        limit = plan.limit(standing.past, standing.allowance, client_id)
        limits.setdefault((frozenset(standing.past.items()), standing.allowance), limit)
    return shared_noise(list(limits.values()), plan.config.sampling_rate, plan.total_steps, plan.relation)


def _known_allowance(plan: RunPlan) -> Allowance:
    """What is in force on the datasets of a run's ledger; else what the run asks for."""
    return next(iter(_on_ledger(plan).values())).allowance


def _on_ledger(plan: RunPlan, datasets: Mapping[str, str] | None = None) -> dict[str, _Standing]:
    """How clients stand on the run's ledger, by client_id.

    Args:
        plan: of the run.
        datasets: dataset_id by client_id; None: of those that are expected.
    """
    ledger = Ledger(plan.config.ledger) if Ledger.exists(plan.config.ledger) else None
    datasets = datasets or _expected(plan, ledger)
    if ledger is None:
        return {client_id: _Standing({}, plan.config.allowance()) for client_id in datasets}
    accounts, allowances = ledger.accounts(datasets.values()), ledger.allowances(datasets.values())
    own = ledger.accounts_in_run(plan.goes_on, datasets.values()) if plan.goes_on else {}
    usual = plan.config.allowance(next(iter(allowances.values()), None))
    return {
        client_id: _Standing(without(account.history, own.get(dataset, NOTHING_SPENT).history), allowance)
        for client_id, dataset in datasets.items()
        for account, allowance in [(accounts.get(dataset, NOTHING_SPENT), allowances.get(dataset, usual))]
    }


def _expected(plan: RunPlan, ledger: Ledger | None) -> dict[str, str]:
    """The clients that a run may have, before they come: dataset_id by client_id.

    The clients of a deployment have names of their own; those that its ledger knows stand for all. Where each client
    has a rate of its own, nothing is known of those before they come, and the simulated ones are meant.
    """
    clients = [simulated_client_id(number, plan.config.clients) for number in range(plan.config.clients)]
    if ledger is not None and plan.config.batch_size is None:
        records = dataset_id(plan.task, "")
        known = [dataset.removeprefix(records) for dataset in ledger.dataset_ids() if dataset.startswith(records)]
        clients = known if known and not set(known) & set(clients) else clients
    return {client_id: dataset_id(plan.task, client_id) for client_id in clients}
