"""What a run will cost every client, before it is run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TypeAlias

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
from fedprivacy.tasks.loader import agreed, augmentation_of, model_of, shard_of
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.wording import count_text

_NAMED = 5
"""Problems that one error tells."""

_Executed: TypeAlias = frozenset[tuple[Event, int]]


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
        _check_views(plan)
        if config.initial_model:
            initial_parameters(config.initial_model, plan.task)
        _ = plan.client_terms
        try:
            _ = plan.common_noise_multiplier, plan.user_level  # before anything is spent
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
            ValueError: there is none: each client has its own, see `noise_by_rate`.
        """
        if (common := self.common_noise_multiplier) is None:
            raise ValueError("each client has the least noise for its own sampling rate; ask for a client's event.")
        return common

    @property
    def common_noise_multiplier(self) -> float | None:
        """The same; None: there is no such number, since each client has its own (`noise_by_rate`)."""
        return self._noise.shared

    @property
    def rates_differ(self) -> bool:
        """Whether a client's sampling rate follows from its public shard size."""
        return self.config.batch_size is not None and self.task.shard_sizes_public

    @property
    def noise_by_rate(self) -> bool:
        """Whether each client has the least noise for its own sampling rate, past and budget.

        It is found when the client's shard size is known: when it enrols, however late. A client whose terms name a
        noise multiplier has that one.
        """
        return self.rates_differ and self.config.privacy and self.config.noise_multiplier is None

    def noise_multiplier_of(self, client_id: str) -> float:
        """Sigma of a client's local steps: its own, or the run's. Raises what `noise_multiplier` does."""
        own = self._noise.own.get(client_id)
        return self.noise_multiplier if own is None else own

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
    def noise_multipliers(self) -> tuple[float, float] | None:
        """The least and the largest sigma of the clients that may come; None: not known before they have."""
        own = self._noise.own
        if self._noise.shared is None:
            return None
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

    def charged_to(self, ledger: str, run_id: str) -> RunPlan:
        """The same for a run that is charged by this name to the ledger at a URL, where each client's noise is found.

        What the run has charged a client there before it was stopped says which noise that was.
        """
        if not self.noise_by_rate:
            return self
        return replace(self, config=replace(self.config, ledger=ledger), goes_on=run_id)

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
        """What one local step costs a client that disclosed so many records. Raises what `events` does."""
        return self.events({client_id: disclosed})[client_id]

    def events(self, disclosed: Mapping[str, int]) -> dict[str, PoissonSampledGaussian]:
        """What one local step costs each of some clients, by client_id.

        Where noise is found by rate, a client's is the least with which it can take all steps after what the ledger
        says that it has spent before this run; whose past leaves too little for that takes part as long as it lasts.

        Args:
            disclosed: how many records each disclosed.

        Raises:
            ConfigError: no noise meets the budget of some of them, with what would do.
            ValueError: the run is without privacy, so that no epsilon bounds what a step costs.
        """
        found = _found_by_rate(self, disclosed) if self.noise_by_rate else {}
        return {client_id: self._event(size, client_id, found.get(client_id)) for client_id, size in disclosed.items()}

    def _event(self, disclosed: int, client_id: str, found: float | None) -> PoissonSampledGaussian:
        noise_multiplier = self.noise_multiplier_of(client_id) if found is None else found
        return _step(self.sampling_rate(disclosed, client_id), noise_multiplier, self.relation)

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
    charged: History = field(default_factory=dict)  # by this run, before it was stopped

    def charged_at(self, sampling_rate: float) -> float | None:
        """Sigma that this run has charged at a sampling rate; None: it has not.

        Of several, which only a client's own book can have claimed, the one that tells least of its records.
        """
        poisson = [event for event in self.charged if isinstance(event, PoissonSampledGaussian)]
        return max((event.noise_multiplier for event in poisson if event.sampling_rate == sampling_rate), default=None)


_step = lru_cache(maxsize=65_536)(PoissonSampledGaussian)
"""Most clients of a run take the same."""

_NOTHING_DISCLOSED: Mapping[str, int] = MappingProxyType({})


def client_groups(plan: RunPlan, disclosed: Mapping[str, int] | None = None) -> list[ClientGroup]:
    """A run's clients before its first step, those alike together.

    Args:
        plan: of the run.
        disclosed: how many records each client that has come disclosed; None: none has, and these are the simulated
            ones, or those of a deployment that the ledger knows.

    Raises:
        ConfigError: no noise meets the budget of some of them.
    """
    standings = _standings(plan, disclosed)
    sizes = _simulated_sizes(plan, standings) if disclosed is None else disclosed
    found = _found(plan, _seeking(plan, standings), sizes) if plan.noise_by_rate else {}
    groups: dict[object, ClientGroup] = {}
    for client_id, standing in standings.items():
        event = plan._event(sizes[client_id], client_id, found.get(client_id))
        key = event, frozenset(standing.past.items()), standing.allowance, plan.finds_noise(client_id)
        alike = groups.setdefault(key, ClientGroup([], event, standing.past, standing.allowance, standing.question))
        alike.client_ids.append(client_id)
    return list(groups.values())


def _simulated_sizes(plan: RunPlan, client_ids: Collection[str]) -> dict[str, int]:
    """How many records simulated clients would disclose, by client_id; 0 where that does not count."""
    if not plan.rates_differ:  # then no shard is loaded
        return dict.fromkeys(client_ids, 0)
    parts = plan.config.clients
    shards = (shard_of(plan.task, ShardSource(partition_id=n, num_partitions=parts)) for n in range(len(client_ids)))
    return {client_id: len(shard) for client_id, shard in zip(client_ids, shards, strict=True)}


def _standings(plan: RunPlan, client_ids: Collection[str] | None = None) -> dict[str, _Standing]:
    """How clients stand before the run's first step, by client_id: the task's own question counts as answered."""
    come = None if client_ids is None else {client_id: dataset_id(plan.task, client_id) for client_id in client_ids}
    standings = _on_ledger(plan, come)
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
    """Sigma of a run: of the clients that share it, and of those that have one of their own, by client_id.

    `shared` is None where each client's is found by its rate.
    """

    shared: float | None
    own: Mapping[str, float]


def _noise_of(plan: RunPlan) -> _Noise:
    """What is configured, and what was left open and is found, all of it before anything is spent.

    Raises:
        ConfigError: no noise meets the budget, of the run or of clients with terms of their own.
    """
    terms, configured = plan.client_terms, plan.config.noise_multiplier
    own = {c: each.noise_multiplier for c, each in terms.by_client.items() if each.noise_multiplier is not None}
    if configured is not None or plan.noise_by_rate:
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


def _found_by_rate(plan: RunPlan, disclosed: Mapping[str, int]) -> dict[str, float]:
    """Sigma of clients that have come, by client_id: as this run has charged it already, or the least.

    Raises:
        ConfigError: no noise meets the budget of some of them.
    """
    come = {client_id: dataset_id(plan.task, client_id) for client_id in disclosed}
    seeking = _seeking(plan, _on_ledger(plan, come))
    charged = {c: noise for c, s in seeking.items() if (noise := s.charged_at(plan.sampling_rate(disclosed[c], c)))}
    return charged | _found(plan, {c: s for c, s in seeking.items() if c not in charged}, disclosed)


def _seeking(plan: RunPlan, standings: Mapping[str, _Standing]) -> dict[str, _Standing]:
    """Those of these clients whose terms leave their noise open."""
    return {c: standing for c, standing in standings.items() if plan.client_terms.of(c).noise_multiplier is None}


def _found(
    plan: RunPlan, standings: Mapping[str, _Standing], disclosed: Mapping[str, int] = _NOTHING_DISCLOSED
) -> dict[str, float]:
    """The least noise of each of these clients for itself; those that stand alike are asked once.

    Raises:
        ConfigError: names those, or the first of those, whose budget no noise meets.
    """
    alike: dict[tuple[_Executed, Allowance, float], list[str]] = {}
    for client_id, standing in standings.items():
        rate = plan.sampling_rate(disclosed.get(client_id, 0), client_id)
        alike.setdefault((frozenset(standing.past.items()), standing.allowance, rate), []).append(client_id)
    found: dict[str, float] = {}
    problems: list[str] = []
    for standing_so, client_ids in alike.items():
        try:
            noise = _least_noise(*standing_so, plan.most_spent, plan.total_steps, plan.relation)
            found |= dict.fromkeys(client_ids, noise)
        except ValueError as error:
            problems.append(f"{_place(plan, client_ids)}: {error}")
    if problems:
        more = len(problems) - _NAMED
        raise ConfigError(problems[:_NAMED] + [f"It is so for {more} other sampling rates and pasts."] * (more > 0))
    return found


def _place(plan: RunPlan, client_ids: Sequence[str]) -> str:
    """Whom an error is about: the first of clients that stand alike, and where its terms are from, if it has any."""
    first, others = client_ids[0], len(client_ids) - 1
    named = plan.client_terms.place(first) if first in plan.client_terms else first or "a client"
    return f"{named} and {count_text(others, 'other client')}" if others else named


@lru_cache(maxsize=2**16)
def _least_noise(  # noqa: PLR0917 - what clients that stand alike have in common
    past: _Executed,
    allowance: Allowance,
    sampling_rate: float,
    most_spent: float,
    steps: int,
    relation: NeighbouringRelation,
) -> float:
    """With which a client can take all steps; where its past leaves too little for that, what a new one would need.

    Whose past leaves too little takes part as long as that lasts, as in `fedprivacy.accounting.spend.shared_noise`.

    Raises:
        ValueError: no noise meets the budget of a client without a past.
    """
    limit = RunLimit(filter_of(allowance), dict(past), most_spent)
    try:
        return limit.noise_multiplier(sampling_rate, steps, relation)
    except ValueError:
        if not past:
            raise
    return replace(limit, before={}).noise_multiplier(sampling_rate, steps, relation)


def _check_layers(plan: RunPlan) -> None:
    """Raise a `ConfigError` unless the model has the layers that the run's algorithm has each client keep."""
    try:
        _ = plan.config.algorithm_in(1).layers(model_of(plan.task))
    except ValueError as error:
        raise ConfigError([f"algorithm is '{plan.config.algorithm}', and {error}"]) from error


def _check_views(plan: RunPlan) -> None:
    """Raise a `ConfigError` unless the task has views of records, where the run wants some."""
    if plan.config.augmentation_multiplicity:
        try:
            augmentation_of(plan.task)
        except TaskError as error:
            raise ConfigError([f"augmentation-multiplicity is set, and {error}"]) from error


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
    return shared_noise(list(limits.values()), plan.sampling_rate(), plan.total_steps, plan.relation)


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
    datasets = _expected(plan, ledger) if datasets is None else datasets
    if ledger is None:
        return {client_id: _Standing({}, plan.allowance(client_id)) for client_id in datasets}
    accounts, allowances = ledger.accounts(datasets.values()), ledger.allowances(datasets.values())
    of_run = ledger.accounts_in_run(plan.goes_on, datasets.values()) if plan.goes_on else {}
    known = next(iter(allowances.values()), None)
    standings = {}
    for client_id, dataset in datasets.items():
        charged = of_run.get(dataset, NOTHING_SPENT).history
        past = without(accounts.get(dataset, NOTHING_SPENT).history, charged)
        standings[client_id] = _Standing(
            past, allowances.get(dataset) or plan.allowance(client_id, known), charged=charged
        )
    return standings


def _expected(plan: RunPlan, ledger: Ledger | None) -> dict[str, str]:
    """The clients that a run may have, before they come: dataset_id by client_id.

    The clients of a deployment have names of their own; those that its ledger or its table of terms knows stand for
    all. Where each client has a rate of its own, nothing is known of those before they come, and the simulated ones are
    meant.
    """
    clients = plan.simulated_clients
    named, known = list(plan.client_terms.by_client), list[str]()
    if ledger is not None and not plan.rates_differ:
        records = dataset_id(plan.task, "")
        known = [dataset.removeprefix(records) for dataset in ledger.dataset_ids() if dataset.startswith(records)]
    if known and not set(known) & set(clients):
        clients = list(dict.fromkeys([*known, *named]))
    elif plan.client_terms.unknown(clients) == named:  # those who are not named stand for the others
        clients = [*named, *clients[len(named) :]]
    else:
        clients = [*clients, *plan.client_terms.unknown(clients)]
    return {client_id: dataset_id(plan.task, client_id) for client_id in clients}
