"""A run's public numbers, before it is run: what a local step costs every client, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from fedprivacy.accounting import RunLimit, pld
from fedprivacy.accounting.histories import extend_history
from fedprivacy.ledger import Allowance, Ledger
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import parse
from fedprivacy.questions.moments import Spread
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.standardise import standardise_question
from fedprivacy.runs.plans.noise import Demand, RunNoise, Standing, UserLevelNoise, standings_on
from fedprivacy.runs.settings.client_terms import ClientTerms, client_terms_of
from fedprivacy.runs.settings.configuration import ASKING_KEYS, USUAL_SPEND, ConfigError, RunConfig, Value, resolve
from fedprivacy.tasks import Task, TaskError, relation_of
from fedprivacy.tasks.identity import dataset_id, simulated_client_id
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import Unit

if TYPE_CHECKING:
    from torch import Tensor

_step = lru_cache(maxsize=65_536)(PoissonSampledGaussian)
"""The event of a local step. Most clients of a run share one."""


@dataclass(frozen=True)
class RunPlan:
    """The public numbers that runs have in common, whether they train (`TrainingPlan`) or ask (`QuestionPlan`).

    Attributes:
        config: of the run.
        task: what is learned or asked about.
        run_id: the run's name on its ledger, if it has been charged there already: its own charges are not its past.

    Raises:
        ConfigError: the configuration names another task.
    """

    config: RunConfig
    task: OpenedTask
    run_id: str = ""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "task", open_task(self.config.task, self.task))
        except TaskError as error:
            raise ConfigError(str(error)) from error

    @classmethod
    def _of(cls, given: Mapping[str, Value | None], task: Task | None, run_id: str = "") -> Self:
        """The plan of a configuration by hyphenated key; a `ConfigError` lists everything that is wrong with it."""
        config = resolve(given, task)
        plan = cls(config, open_task(config.task, task), run_id)
        _ = plan.client_terms
        return plan

    @cached_property
    def client_terms(self) -> ClientTerms:
        """The table of what clients have of their own; a `ConfigError` lists what is wrong with it."""
        return client_terms_of(self.config.client_terms)

    @cached_property
    def noise(self) -> RunNoise:
        """The configured noise, or the least that budgets, spend and these clients' pasts allow; 0 without privacy.

        Raises:
            ConfigError: no noise meets the budget, of the run or of clients with terms of their own.
        """
        terms, configured = self.client_terms, self.config.noise_multiplier
        if not self.config.privacy:
            return RunNoise(0.0, {})
        own = {c: each.noise_multiplier for c, each in terms.by_client.items() if each.noise_multiplier is not None}
        if configured is not None or self.noise_by_rate:
            return RunNoise(configured, own)
        try:
            standings = self.standings()
            alone = {c: s for c, s in standings.items() if terms.of(c).asks_for_noise}
            sharing = {c: s for c, s in standings.items() if c not in own and c not in alone}
            own |= self.least_noise(alone, {})
            shared = self.demand.shared_noise(
                sharing or {"": Standing({}, self.config.allowance())}, self.sampling_rate()
            )
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return RunNoise(shared, own)

    def least_noise(self, standings: Mapping[str, Standing], disclosed: Mapping[str, int]) -> dict[str, float]:
        """Return the least noise multiplier of each client for its own sampling rate, by client_id.

        Args:
            standings: of the clients.
            disclosed: how many records each disclosed; who is missing disclosed none.

        Raises:
            ConfigError: no noise meets the budget of some of them.
        """
        rates = {client_id: self.sampling_rate(disclosed.get(client_id, 0), client_id) for client_id in standings}
        return self.demand.own_noise(standings, rates, self._place)

    def _place(self, client_id: str) -> str:
        """The name of a client in an error: where its terms are from, if it has any."""
        return self.client_terms.place(client_id) if client_id in self.client_terms else client_id or "a client"

    @property
    def demand(self) -> Demand:
        """All steps of the run, for which noise is sought."""
        return Demand(self.total_steps, self.most_spent, self.relation)

    def for_ledger(self, ledger: str, run_id: str) -> Self:
        """The same for a run that is charged by this name to the ledger at a URL, where each client's noise is found.

        What the run has charged a client there before it was stopped says which noise that was.
        """
        if not self.noise_by_rate:
            return self
        return replace(self, config=replace(self.config, ledger=ledger), run_id=run_id)

    @property
    def rates_differ(self) -> bool:
        """Tell whether a client's sampling rate follows from its public shard size."""
        return self.config.batch_size is not None and self.task.shard_sizes_public

    @property
    def noise_by_rate(self) -> bool:
        """Tell whether each client has the least noise for its own sampling rate, past and budget.

        It is found when the client's shard size is known: when it enrols, however late. A client whose terms name a
        noise multiplier has that one.
        """
        return self.rates_differ and self.config.privacy and self.config.noise_multiplier is None

    def finds_noise(self, client_id: str) -> bool:
        """Tell whether a client's noise was left open, so that another run would find its own."""
        return self.config.noise_multiplier is None and self.client_terms.of(client_id).noise_multiplier is None

    @property
    def simulated_clients(self) -> list[str]:
        """Names of the clients of a simulation."""
        return [simulated_client_id(number, self.config.clients) for number in range(self.config.clients)]

    def standings(self, client_ids: Collection[str] | None = None) -> dict[str, Standing]:
        """Clients' standings before the run's first step, by client_id; None: of those that may come."""
        return self.ledger_standings(client_ids)

    def ledger_standings(self, client_ids: Collection[str] | None = None) -> dict[str, Standing]:
        """The same, by what is on the run's ledger now.

        Raises:
            LedgerError: the ledger holds runs on the same records with another unit of privacy.
        """
        with Ledger(self.config.ledger) if Ledger.exists(self.config.ledger) else nullcontext() as ledger:
            if ledger is not None:
                ledger.check_unit(self.task.dataset, self.run_id, self.unit)
            come = self._expected_clients(ledger) if client_ids is None else client_ids
            datasets = {client_id: dataset_id(self.task, client_id) for client_id in come}
            return standings_on(ledger, self.run_id, datasets, self.allowance)

    def _expected_clients(self, ledger: Ledger | None) -> list[str]:
        """The clients that the run may have, before they come.

        The clients of a deployment have names of their own; those that its ledger or its table of terms knows stand
        for all. Where each client has a rate of its own, nothing is known of those before they come, and the simulated
        ones are meant.
        """
        simulated, named, known = self.simulated_clients, list(self.client_terms.by_client), list[str]()
        if ledger is not None and not self.rates_differ:
            records = dataset_id(self.task, "")
            known = [dataset.removeprefix(records) for dataset in ledger.dataset_ids() if dataset.startswith(records)]
        unknown = self.client_terms.unknown(simulated)
        if known and not set(known) & set(simulated):
            return list(dict.fromkeys([*known, *named]))
        if unknown == named:  # those who are not named stand for the others
            return [*named, *simulated[len(named) :]]
        return [*simulated, *unknown]

    @property
    def most_spent(self) -> float:
        """Maximum epsilon that the run may take of a budget; infinite: all that is left."""
        return self.config.most_spent

    def budget(self, client_id: str = "") -> PrivacyBudget:
        """The budget of a client's dataset over all runs: the client's own, or the run's."""
        return self.client_terms.of(client_id).budget(self.config.budget)

    def check_limited(self) -> None:
        """Refuse a budget without a limit, of the run or of a client: a deployment keeps one in both books.

        Raises:
            ConfigError: names the settings.
        """
        if not self.config.budget.enforced:
            raise ConfigError(
                "epsilon is inf, as it is where noise-multiplier is given alone; in a deployment give a finite one."
            )
        unlimited = [client for client in self.client_terms.by_client if not self.budget(client).enforced]
        if unlimited:
            raise ConfigError(f"client-terms gives {unlimited[0]} epsilon inf; in a deployment give a finite one.")

    @property
    def common_budget(self) -> float:
        """The epsilon that the run asks for on everybody's dataset; infinite: none, or not the same for all."""
        own = any(terms.epsilon is not None for terms in self.client_terms.by_client.values())
        return math.inf if own else self.config.epsilon

    def allowance(self, client_id: str = "", known: Allowance | None = None) -> Allowance:
        """The budget with the filter that the run asks for or, left open, the filter of `known`."""
        return replace(self.config.allowance(known), budget=self.budget(client_id))

    def limit(self, past: History, allowance: Allowance | None = None, client_id: str = "") -> RunLimit:
        """The limit of the run on a dataset with this past and allowance; None: the allowance that the run asks for."""
        return self.demand.limit(Standing(past, allowance or self.allowance(client_id)), client_id)

    def allows_a_step(self, event: Event, past: History, allowance: Allowance) -> bool:
        """Tell whether a dataset with this past and allowance can take one step more."""
        try:
            return self.limit(past, allowance).quota(past, event) > 0
        except ValueError:  # the filter takes no other mechanism, or can prove nothing with so small a budget
            return False

    def event(self, disclosed: int = 0, client_id: str = "") -> PoissonSampledGaussian:
        """The event of a client's local step, from the number of records it disclosed. Raises what `events` does."""
        return self.events({client_id: disclosed})[client_id]

    def events(self, disclosed: Mapping[str, int]) -> dict[str, PoissonSampledGaussian]:
        """The event of each client's local step, by client_id.

        Where noise is found by rate, a client's is the one that this run has charged already, or the least with which
        it can take all steps after what the ledger says that it has spent before this run; a client whose past leaves
        too little for that takes part as long as its budget lasts.

        Args:
            disclosed: how many records each disclosed.

        Raises:
            ConfigError: no noise meets the budget of some of them, with what would do.
            ValueError: the run is without privacy, so that no epsilon bounds what a step costs.
        """
        return self.events_of(self.ledger_standings(disclosed) if self.noise_by_rate else {}, disclosed)

    def events_of(
        self, standings: Mapping[str, Standing], disclosed: Mapping[str, int]
    ) -> dict[str, PoissonSampledGaussian]:
        """The same for clients with these standings, which matter only where noise is found by rate."""
        rates = {client_id: self.sampling_rate(size, client_id) for client_id, size in disclosed.items()}
        found = dict[str, float]()
        if self.noise_by_rate:
            seeking = {c: s for c, s in standings.items() if self.client_terms.of(c).noise_multiplier is None}
            found = {c: noise for c, s in seeking.items() if (noise := s.charged_at(rates[c])) is not None}
            found |= self.least_noise({c: s for c, s in seeking.items() if c not in found}, disclosed)
        sigmas = {c: found[c] if c in found else self.noise.of(c) for c in rates}
        return {client_id: _step(rate, sigmas[client_id], self.relation) for client_id, rate in rates.items()}

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
    def unit(self) -> Unit:
        """The unit of privacy: a row, or the task's persons."""
        return self.task.unit

    @property
    def total_steps(self) -> int:
        """Number of local steps that a client which joins every round is charged."""
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


@dataclass(frozen=True)
class TrainingPlan(RunPlan):
    """The plan of a run that trains; where its task standardises, a question is asked first (`preliminary`)."""

    @classmethod
    def of(cls, given: Mapping[str, Value | None], task: Task | None = None, *, run_id: str = "") -> TrainingPlan:
        """The plan of a configuration by hyphenated key, for example of Flower's `context.run_config`.

        Raises:
            ConfigError: lists everything that is wrong with the configuration, or with its clients' own terms, or says
                why no noise meets the budget.
        """
        plan = cls._of(given, task, run_id)
        _check_layers(plan)
        if plan.config.augmentation_multiplicity:
            try:
                plan.task.needed_augmentation()
            except TaskError as error:
                raise ConfigError(f"augmentation-multiplicity is set, and {error}") from error
        if plan.config.initial_model:
            initial_parameters(plan.config.initial_model, plan.task)
        _ = plan.noise, plan.user_level  # before anything is spent
        _check_one_step(plan)
        return plan

    @cached_property
    def user_level(self) -> UserLevelNoise | None:
        """The server's own noise; None: it adds none.

        Raises:
            ConfigError: says why no noise meets the user-level budget, or that it does not allow one round.
        """
        return UserLevelNoise.of(self.config) if self.config.user_level else None

    @property
    def measures(self) -> bool:
        """Tell whether the run measures its model without callbacks."""
        held_out = self.task.offers("held_out") and bool(self.simulated_clients)
        return self.task.offers("evaluate") or held_out or self.config.local_evaluation > 0

    @cached_property
    def standardise(self) -> Spread | None:
        """The question by whose answer the task standardises its inputs; None: it does not.

        Raises:
            QuestionError: the task names something else.
        """
        return standardise_question(self.task)

    @cached_property
    def preliminary(self) -> QuestionPlan | None:
        """The plan of that question, which is asked once, before the first round; None: nothing is asked."""
        if not self.config.privacy or self.standardise is None:
            return None
        known = next(iter(self.ledger_standings().values())).allowance  # in force on the ledger, or asked for
        config = replace(
            self.config,
            rounds=1,
            local_steps=1,
            local_evaluation=0,
            sampling_rate=1.0,
            batch_size=None,
            noise_multiplier=None,
            spend=self.config.question_spend,
            filter=self.config.filter or known.filter,
        )
        return QuestionPlan(config, self.task)

    def standings(self, client_ids: Collection[str] | None = None) -> dict[str, Standing]:
        """The same; the task's own question counts as answered."""
        standings = self.ledger_standings(client_ids)
        if self.preliminary is None or self.standardise is None:
            return standings
        datasets = {client_id: dataset_id(self.task, client_id) for client_id in standings}
        with Ledger(self.config.ledger) if Ledger.exists(self.config.ledger) else nullcontext() as ledger:
            answers = ledger.answers(self.standardise.as_text(), datasets.values()) if ledger else {}
        lacking = {client_id: each for client_id, each in standings.items() if datasets[client_id] not in answers}
        event = self.preliminary.for_clients(lacking).event()
        return standings | {
            client_id: replace(each, past=extend_history(each.past, event, 1), question=event)
            for client_id, each in lacking.items()
        }


@dataclass(frozen=True)
class QuestionPlan(RunPlan):
    """The plan of a run that asks: one step, which reads every record.

    Attributes:
        found_noise: the noise multiplier that keeps the spend of the clients that are asked; None: it is found for
            those that may come.
    """

    found_noise: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Value | None], task: Task | None = None) -> QuestionPlan:
        """The plan of a run that asks.

        Args:
            given: some of `ASKING_KEYS`, by hyphenated key; None and "" mean "left open". Where neither spend nor noise
                multiplier is given, the spend is `USUAL_SPEND`.
            task: whose records; None: the one that the settings name.

        Raises:
            ConfigError: lists everything that is wrong with the settings. That no noise meets the budget is said by
                `noise`: what was answered before can be read when nothing is left to spend.
        """
        named = {key: value for key, value in given.items() if value not in (None, "")}
        if others := sorted(named.keys() - set(ASKING_KEYS) - {"questions"}):
            raise ConfigError(f"{', '.join(others)} is of training; a run that asks has {', '.join(ASKING_KEYS)}.")
        if not {"spend", "noise-multiplier"} & named.keys():
            named["spend"] = USUAL_SPEND
        plan = cls._of({**named, "rounds": 1, "local-steps": 1, "sampling-rate": 1.0}, task)
        with suppress(ConfigError):
            _ = plan.noise  # of the pasts as they are now, before anybody is asked
        return plan

    @cached_property
    def client_terms(self) -> ClientTerms:
        """The budgets of clients that have their own: everybody is asked with the same noise, at sampling rate 1."""
        return super().client_terms.budgets

    @cached_property
    def noise(self) -> RunNoise:
        """The noise that was found for these clients; else as for every run."""
        return super().noise if self.found_noise is None else RunNoise(self.found_noise, {})

    @property
    def most_spent(self) -> float:
        """The same; the noise that was found keeps the spend already."""
        return super().most_spent if self.found_noise is None else math.inf

    def for_clients(self, client_ids: Collection[str]) -> QuestionPlan:
        """The plan for these clients alone: noise that is left open is what they need, and keeps the spend.

        Raises:
            ValueError: no noise is enough for any of them.
        """
        if self.config.noise_multiplier is not None or not client_ids:
            return self
        return replace(self, found_noise=self.demand.shared_noise(self.standings(client_ids), self.sampling_rate()))


def questions_in(text: str) -> Questionnaire:
    """The questions of the setting `questions`, as people type them.

    Raises:
        ConfigError: they cannot be read, or cannot be asked.
    """
    try:
        return Questionnaire(parse(text))
    except QuestionError as error:
        raise ConfigError(f"questions: {error}") from error


def initial_parameters(file: str, task: OpenedTask) -> dict[str, Tensor]:
    """The trained parameters that a file holds for a task's model, by name; what else is in it is left aside.

    Args:
        file: safetensors, for example a run's `model.safetensors`.
        task: whose model begins with them.

    Raises:
        ConfigError: the file cannot be read, or lacks a trained parameter of the model, or has it in another shape.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fedprivacy.gradients import trainable_parameters

    own = trainable_parameters(task.model())
    try:
        found = load_file(Path(file))
    except (SafetensorError, OSError) as error:
        unreadable = f"initial-model is '{file}', which cannot be read ({error}); name a safetensors file."
        raise ConfigError(unreadable) from error
    for name, parameter in own.items():
        shape = list(found[name].shape) if name in found else "none"
        if shape != (wanted := list(parameter.shape)):
            raise ConfigError(
                f"initial-model is '{file}', and for '{name}' the task's model wants shape {wanted}, where it has "
                f"{shape}; name a file of this model, or leave it open."
            )
    return {name: found[name].to(parameter.dtype) for name, parameter in own.items()}


def _check_layers(plan: TrainingPlan) -> None:
    """Raise a `ConfigError` unless the model has the layers that the run's algorithm has each client keep."""
    try:
        _ = plan.config.algorithm_in(1).layers(plan.task.model())
    except ValueError as error:
        raise ConfigError(f"algorithm is '{plan.config.algorithm}', and {error}") from error


def _check_one_step(plan: TrainingPlan) -> None:
    """Refuse terms with which a client that has spent nothing could not take one step, before anybody is asked.

    How much of its budget a client with a past has left is no fault of its terms: it is left out when that is spent.
    Where its rate is its shard size's, it is not known yet.

    Raises:
        ConfigError: lists these clients, with what each would do.
    """
    problems: list[str] = []
    fits: dict[tuple[Event, Allowance], bool] = {}
    for client_id, own in plan.client_terms.by_client.items() if plan.config.privacy else ():
        if plan.config.batch_size is not None and own.sampling_rate is None:
            continue
        event, allowance = plan.event(client_id=client_id), plan.allowance(client_id)
        if (event, allowance) not in fits:
            fits[event, allowance] = plan.allows_a_step(event, {}, allowance)
        if not fits[event, allowance]:
            problems.append(
                f"{plan.client_terms.place(client_id)}: epsilon {allowance.budget.epsilon:g} at delta "
                f"{allowance.budget.delta:g} allows not one local step of sampling rate {event.sampling_rate:g} and "
                f"noise multiplier {event.noise_multiplier:.4g}; give it a larger epsilon or noise_multiplier, or a "
                "smaller sampling_rate."
            )
    if problems:
        raise ConfigError(problems)
