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
from fedprivacy.runs.client_terms import ClientTerms, client_terms_of
from fedprivacy.runs.configuration import ConfigError, RunConfig, Value, resolve
from fedprivacy.runs.initial_model import initial_parameters
from fedprivacy.runs.user_level import UserLevelPlan, user_level_plan
from fedprivacy.tasks import ShardSource, Task, TaskError, load_task, relation_of
from fedprivacy.tasks.identity import dataset_id, simulated_client_id
from fedprivacy.tasks.loader import agreed, model_of
from fedprivacy.values.budget import PrivacyBudget
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
            ConfigError: lists everything that is wrong with the configuration, or with its clients' own terms, or says
                why no noise meets the budget; of a run that asks, `noise_multiplier` says that.
        """
        config = resolve(given, task)
        plan = cls(config, task or load_task(config.task), goes_on, asks)
        _check_layers(plan)
        if config.initial_model:
            initial_parameters(config.initial_model, plan.task)
        _ = plan.client_terms
        try:
            _ = plan.noise_multiplier, plan.user_level  # before anything is spent
            _check_one_step(plan)
        except ConfigError:
            if not asks:  # what was answered before can be read when nothing is left to spend
                raise
        return plan

    @cached_property
    def client_terms(self) -> ClientTerms:
        """What clients have of their own; where the run asks and reads every record, budgets alone.

        Raises:
            ConfigError: lists what is wrong with the table.
        """
        terms = client_terms_of(self.config.client_terms)
        return terms.budgets if self.asks else terms

    @property
    def noise_multiplier(self) -> float:
        """Sigma of a local step of clients without noise of their own.

        It is the configured one, or the least that budgets, spend and these clients' pasts allow: see
        `fedprivacy.accounting.spend.shared_noise` for clients that have spent differently. 0 without privacy.

        Raises:
            ConfigError: says why no noise meets the budget, or that of clients with terms of their own.
        """
        return self._noise.shared

    def noise_multiplier_of(self, client_id: str) -> float:
        """Sigma of a client's local steps: its own, or the run's."""
        return self._noise.own.get(client_id, self._noise.shared)

    @property
    def own_noise_multipliers(self) -> Mapping[str, float]:
        """Sigma of the clients that have one of their own, by client_id: as their terms say, or as was found."""
        return self._noise.own

    def finds_noise(self, client_id: str) -> bool:
        """Whether a client's noise was left open, so that another run would find its own."""
        return self.config.noise_multiplier is None and self.client_terms.of(client_id).noise_multiplier is None

    @property
    def simulated_clients(self) -> list[str]:
        """What the clients of a simulation are called."""
        return [simulated_client_id(number, self.config.clients) for number in range(self.config.clients)]

    @property
    def noise_multipliers(self) -> tuple[float, float]:
        """The least and the largest sigma of the clients that may come."""
        own = self._noise.own
        each = [*own.values(), *([] if own.keys() >= {*self.simulated_clients} else [self._noise.shared])]
        return min(each), max(each)

    @cached_property
    def _noise(self) -> _Noise:
        if not self.config.privacy:
            return _Noise(0.0, {})
        return _noise_of(self)

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

    def budget(self, client_id: str = "") -> PrivacyBudget:
        """What the run asks for on a client's dataset, over all runs: the client's own budget, or the run's."""
        return self.client_terms.of(client_id).budget(self.config.budget)

    @property
    def common_budget(self) -> float:
        """The epsilon that the run asks for on everybody's dataset; infinite: none, or not the same for all."""
        own = any(terms.epsilon is not None for terms in self.client_terms.by_client.values())
        return math.inf if own else self.config.epsilon

    def allowance(self, client_id: str = "", known: Allowance | None = None) -> Allowance:
        """The same with the filter that the run asks for or, left open, the known one's."""
        return replace(self.config.allowance(known), budget=self.budget(client_id))

    def limit(self, past: History, allowance: Allowance | None = None, client_id: str = "") -> RunLimit:
        """How far the run may go on a dataset with this past and allowance; None: what the run itself asks for."""
        return RunLimit(filter_of(allowance or self.allowance(client_id)), past, self.most_spent, client_id)

    def event(self, disclosed: int = 0, client_id: str = "") -> PoissonSampledGaussian:
        """What one local step costs a client that disclosed so many records.

        Raises:
            ValueError: the run is without privacy, so that no epsilon bounds what a step costs.
        """
        rate, noise_multiplier = self.sampling_rate(disclosed, client_id), self.noise_multiplier_of(client_id)
        return PoissonSampledGaussian(rate, noise_multiplier, self.relation)

    def sampling_rate(self, disclosed: int = 0, client_id: str = "") -> float:
        """q of a local step of a client; how many records it disclosed counts with a `batch_size` only."""
        if (own := self.client_terms.of(client_id).sampling_rate) is not None:
            return own
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
        delta = (allowance or self.allowance()).budget.delta
        return pld.epsilons(event, self.steps_by_round(event, past, allowance).tolist(), delta, past=past)

    def shard_size(self, disclosed: int, answered: float = 0.0) -> float:
        """The public size of a shard: what the client disclosed if sizes are public.

        Else what its private answer says, if there is one, and the task's public guess if there is none. At least 1: a
        client whose shard is empty still sends noise, and nothing may be divided by zero.
        """
        public = disclosed if self.task.shard_sizes_public else answered or self.task.nominal_shard_size
        return float(max(public or 0, 1))

    def weight(self, disclosed: int, answered: float = 0.0, event: PoissonSampledGaussian | None = None) -> float:
        """The public weight of a client's update in the average: its shard size if that is known, else 1.

        With `inverse-variance`, it is (b / sigma)^2, b being the client's expected batch size: the noise of a step's
        released mean has a standard deviation of sigma C / b, and of all averages this one has the least noise.

        Args:
            disclosed: how many records the client disclosed.
            answered: how many it has, by its private answer; 0: there is none.
            event: what its local step is; None: it adds no noise.
        """
        if event is not None and self.config.weighting == "inverse-variance":
            return (event.sampling_rate * self.shard_size(disclosed, answered) / event.noise_multiplier) ** 2
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
    groups: dict[object, ClientGroup] = {}
    for number, (client_id, standing) in enumerate(_standings(plan).items()):
        shard = ShardSource(partition_id=number, num_partitions=plan.config.clients)
        event = plan.event(len(plan.task.shard(shard)) if sizes_count else 0, client_id)
        key = event, frozenset(standing.past.items()), standing.allowance, plan.finds_noise(client_id)
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


@dataclass(frozen=True, slots=True)
class _Noise:
    """Sigma of a run: of the clients that share it, and of those that have one of their own, by client_id."""

    shared: float
    own: Mapping[str, float]


def _noise_of(plan: RunPlan) -> _Noise:
    """What is configured, and what was left open and is found, all of it before anything is spent.

    Raises:
        ConfigError: no noise meets the budget, of the run or of clients with terms of their own.
    """
    terms, configured = plan.client_terms, plan.config.noise_multiplier
    own = {c: each.noise_multiplier for c, each in terms.by_client.items() if each.noise_multiplier is not None}
    if configured is not None:
        return _Noise(configured, own)
    try:
        standings = _standings(plan)
        asking = {} if plan.asks else {c: s for c, s in standings.items() if terms.of(c).asks_for_noise}
        sharing = {c: s for c, s in standings.items() if c not in own and c not in asking}
        found = _found(plan, asking)
        shared = _solved(plan, sharing or {"": _Standing({}, plan.config.allowance())})
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    return _Noise(shared, own | found)


def _found(plan: RunPlan, standings: Mapping[str, _Standing]) -> dict[str, float]:
    """The least noise of each client that has terms of its own; those that stand alike are asked once."""
    known: dict[object, float] = {}
    found: dict[str, float] = {}
    problems: list[str] = []
    for client_id, standing in standings.items():
        rate = plan.sampling_rate(client_id=client_id)
        alike = frozenset(standing.past.items()), standing.allowance, rate
        try:
            if alike not in known:
                known[alike] = _least_noise(plan.limit(standing.past, standing.allowance, client_id), rate, plan)
            found[client_id] = known[alike]
        except ValueError as error:
            problems.append(f"{plan.client_terms.place(client_id)}: {error}")
    if problems:
        raise ConfigError(problems)
    return found


def _least_noise(limit: RunLimit, sampling_rate: float, plan: RunPlan) -> float:
    """With which a client can take all steps; where its past leaves too little for that, what a new one would need.

    Whose past leaves too little takes part as long as that lasts, as in `fedprivacy.accounting.spend.shared_noise`.

    Raises:
        ValueError: no noise meets the budget of a client without a past.
    """
    try:
        return limit.noise_multiplier(sampling_rate, plan.total_steps, plan.relation)
    except ValueError:
        if not limit.before:
            raise
    return replace(limit, before={}).noise_multiplier(sampling_rate, plan.total_steps, plan.relation)


def _check_layers(plan: RunPlan) -> None:
    """Raise a `ConfigError` unless the model has the layers that the run's algorithm has each client keep."""
    try:
        _ = plan.config.algorithm_in(1).layers(model_of(plan.task))
    except ValueError as error:
        raise ConfigError([f"algorithm is '{plan.config.algorithm}', and {error}"]) from error


def _check_one_step(plan: RunPlan) -> None:
    """Refuse terms with which a client that has spent nothing could not take one step, before anybody is asked.

    How much of its budget a client with a past has left is no fault of its terms: it is left out when that is spent.
    Where its rate is its shard size's, it is not known yet.

    Raises:
        ConfigError: lists these clients, with what each would do.
    """
    problems: list[str] = []
    fits: dict[tuple[Event, Allowance], bool] = {}
    for client_id, own in plan.client_terms.by_client.items() if plan.config.privacy and not plan.asks else ():
        if plan.config.batch_size is not None and own.sampling_rate is None:
            continue
        event, allowance = plan.event(client_id=client_id), plan.allowance(client_id)
        if (event, allowance) not in fits:
            fits[event, allowance] = _allows_a_step(plan, event, allowance)
        if not fits[event, allowance]:
            problems.append(
                f"{plan.client_terms.place(client_id)}: epsilon {allowance.budget.epsilon:g} at delta "
                f"{allowance.budget.delta:g} allows not one local step of sampling rate {event.sampling_rate:g} and "
                f"noise multiplier {event.noise_multiplier:.4g}; give it a larger epsilon or noise_multiplier, or a "
                "smaller sampling_rate."
            )
    if problems:
        raise ConfigError(problems)


def _allows_a_step(plan: RunPlan, event: PoissonSampledGaussian, allowance: Allowance) -> bool:
    try:
        return plan.limit({}, allowance).quota({}, event) > 0
    except ValueError:  # the budget is too small for its filter to prove anything
        return False


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
        return {client_id: _Standing({}, plan.allowance(client_id)) for client_id in datasets}
    accounts, allowances = ledger.accounts(datasets.values()), ledger.allowances(datasets.values())
    own = ledger.accounts_in_run(plan.goes_on, datasets.values()) if plan.goes_on else {}
    known = next(iter(allowances.values()), None)
    return {
        client_id: _Standing(
            without(accounts.get(dataset, NOTHING_SPENT).history, own.get(dataset, NOTHING_SPENT).history),
            allowances.get(dataset) or plan.allowance(client_id, known),
        )
        for client_id, dataset in datasets.items()
    }


def _expected(plan: RunPlan, ledger: Ledger | None) -> dict[str, str]:
    """The clients that a run may have, before they come: dataset_id by client_id.

    The clients of a deployment have names of their own; those that its ledger or its table of terms knows stand for
    all. Where each client has a rate of its own, nothing is known of those before they come, and the simulated ones are
    meant.
    """
    clients = plan.simulated_clients
    named, known = list(plan.client_terms.by_client), list[str]()
    if ledger is not None and plan.config.batch_size is None:
        records = dataset_id(plan.task, "")
        known = [dataset.removeprefix(records) for dataset in ledger.dataset_ids() if dataset.startswith(records)]
    if known and not set(known) & set(clients):
        clients = list(dict.fromkeys([*known, *named]))
    elif plan.client_terms.unknown(clients) == named:  # those who are not named stand for the others
        clients = [*named, *clients[len(named) :]]
    else:
        clients = [*clients, *plan.client_terms.unknown(clients)]
    return {client_id: dataset_id(plan.task, client_id) for client_id in clients}
