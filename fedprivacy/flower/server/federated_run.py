"""A run from its first round to its last: the set-up, and the steps after every round."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedprivacy._support.failpoints import reach
from fedprivacy._support.logs import about
from fedprivacy._support.random_state import RandomState
from fedprivacy.flower.server.accounts import Books, RunAccounts, check_named, check_worth_asking
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.flower.server.checkpoint import (
    Checkpoint,
    GlobalModel,
    ServerControl,
    as_arrays,
    read_state,
    save_checkpoint,
    unkept_attributes,
    write_state,
)
from fedprivacy.flower.server.measures import ClientModels, Measures
from fedprivacy.flower.server.nodes import ClientRegistry, Correspondence, EnrolledClient
from fedprivacy.flower.server.one_round import OpenRound, RoundOutcome
from fedprivacy.flower.server.rounds import (
    PoissonSampled,
    RoundFailedError,
    RoundSchedule,
    RunRounds,
    StrategyChooses,
    Transport,
    UserLevelReleases,
)
from fedprivacy.flower.server.transports import ByMessage, Together, population_of
from fedprivacy.flower.server.wrapped import WrappedStrategy, averages, check_averages
from fedprivacy.gradients import trainable_parameters
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.standardise import Standardise, standardiser
from fedprivacy.runs.callbacks import Callback, Callbacks
from fedprivacy.runs.participation import check_participation, participation_of
from fedprivacy.runs.plans.plan import TrainingPlan, initial_parameters
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.user_level_book import UserLevelBook
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.metrics import metrics_of_each
from fedprivacy.values.runs import Observer, Phase, PhaseObserver, RoundResult, Stage
from fedprivacy.values.wording import NO_PRIVACY, epsilon_text

log, flower_log = logging.getLogger("fedprivacy.server"), logging.getLogger("flwr")

_NAMED = 10
"""Number of clients that one event names."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class PrivateResult(Result):
    """Flower's result of a run, as far as the run has come: the model is kept whatever happens."""

    stopped_because: str = ""
    """Why the run ended before its last round; empty if it did not."""

    personal: Callable[[], Mapping[str, Tensor]] = dict
    """Models of simulated clients' own, flat, by client_id; empty: all clients use the global model."""

    standardise: Standardise | None = None
    """The standardisation of inputs before the model; None: the task does not standardise."""


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of a run besides its plan; `PrivateStrategy` describes each."""

    run_id: str | None = None
    accounts: type[Books] = RunAccounts
    observers: Sequence[Observer] = ()
    on_open: Callable[[str], None] = lambda _: None
    on_phase: PhaseObserver = lambda _: None
    resume: Checkpoint | None = None
    checkpoints: Path | None = None
    callbacks: Sequence[Callback] = ()


class FederatedRun:
    """One run: its state between two rounds, and what happens in each.

    Args:
        strategy: any Flower strategy.
        plan: the run's public numbers.
        parts: everything else.

    Raises:
        CallbackError, ConfigError: see `PrivateStrategy`.

    Attributes:
        run_id: unique in the ledger.
        result: so far.
        clock: when the last round was over, in simulated seconds.
    """

    def __init__(self, strategy: Strategy, plan: TrainingPlan, parts: RunParts) -> None:
        resume = parts.resume
        if plan.config.resume and resume is None:
            raise ConfigError(
                f"resume is '{plan.config.resume}', but this app starts every run anew; leave resume open, or give "
                "PrivateStrategy a checkpoint, as server/app.py does."
            )
        self.run_id = resume.run_id if resume else parts.run_id or uuid.uuid4().hex
        self.result = PrivateResult()
        self.clock = resume.clock if resume else 0.0
        parts.accounts.check(plan.config)
        self._participation = participation_of(plan.config, self.run_id)
        if plan.config.user_level:
            check_averages(strategy)
            if parts.checkpoints is None:
                account = "user-level noise is charged to an account in the run's folder, and there is none"
                raise ConfigError(f"{account}; give PrivateStrategy checkpoints, a folder.")
        self._strategy, self._plan, self._parts, self._resume = strategy, plan, parts, resume
        self._callbacks = Callbacks(parts.callbacks)
        if resume:
            self._callbacks.check_goes_on(resume.callback_names)
        self.measures = Measures(plan, None)
        self._user_level: UserLevelReleases | None = None  # what clips and noises the clients' updates

    def run(  # noqa: PLR0917 - as Flower starts a strategy
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None,
        last: int,
        timeout: float | None,
        config: ConfigRecord,
        evaluate: EvaluateFn | None,
    ) -> PrivateResult:
        """Run the rounds up to the last; see `PrivateStrategy.start`."""
        finished, model = self._beginning(initial_arrays)
        self.result.arrays = model.kept
        if self._resume and finished >= last:
            return self.result  # no client is needed, so none is waited for
        with about(run=self.run_id), self._callbacks.during(self._plan, self._restore_callbacks):
            rounds = self.enlist(grid, timeout)
            with closing(rounds.accounts):
                self._before_rounds(rounds, model, evaluate)
                for number in range(finished + 1, last + 1):
                    if why := self._callbacks.stop_because:
                        self._end_before(number, why)
                        break
                    with about(round=number):
                        told = self._round(rounds, number, model, config, evaluate)
                    if told is None:
                        break
        return self.result

    def _before_rounds(self, rounds: RunRounds, model: GlobalModel, evaluate: EvaluateFn | None) -> None:
        """Record round 0 of a new run; of a resumed run, restore the random generators instead."""
        if self._resume:
            self._resume.random.restore()
        else:
            rounds.accounts.check_left()
            self._finish(rounds, RoundOutcome(OpenRound(Attempt(self.run_id, 0), model.arrays)), model, evaluate)
        self._warn_of_forgotten_state()

    def _end_before(self, number: int, reason: str) -> None:
        self.result.stopped_because = reason
        log.warning("The run ended before round %d: %s.", number, reason)

    def _round(
        self, rounds: RunRounds, number: int, model: GlobalModel, config: ConfigRecord, evaluate: EvaluateFn | None
    ) -> RoundResult | None:
        """Run one round, with a second attempt if a crash cost every client its update; None: no client is asked."""
        for attempt, again in rounds.accounts.attempts(number):
            opened = rounds.open(attempt, model.arrays, config, again=again, at=self.clock)
            if opened.passed_over:
                outcome = RoundOutcome(opened, ended=opened.began)
                break
            if opened.ends_the_run:
                self._end_before(number, opened.why_nobody)
                return None
            outcome = rounds.settle(opened, rounds.send(opened))
            if opened.sampled or not outcome.all_lost:  # whether some are asked again must not depend on others
                break
        aggregated, metrics = rounds.average(outcome)
        if metrics:
            self.result.train_metrics_clientapp[outcome.opened.attempt.round] = metrics
        if aggregated is not None:
            model.advance(aggregated)
        outcome = replace(outcome, updates={})  # as large as the model, each: free them before the checkpoint is made
        return self._finish(rounds, outcome, model, evaluate)

    def _finish(
        self, rounds: RunRounds, outcome: RoundOutcome, model: GlobalModel, evaluate: EvaluateFn | None
    ) -> RoundResult:
        """Measure, tell the observers, then write the checkpoint: a round recorded after the last one is repeated.

        Raises:
            RoundFailedError: the round gave no update, for another reason than spent budgets.
        """
        finished = self._round_result(rounds, outcome, model.kept, evaluate)
        self.clock = outcome.ended
        for observe in (self._log_round, *self._parts.observers):
            observe(finished)
        self._callbacks.after_round(finished)
        if self.measures.kept is not None:
            self.result.personal = ClientModels(self._plan, self.measures.kept, finished.round, model.kept).personal
        self.result.arrays = model.kept
        rounds.accounts.sign()
        reach("server.round-recorded")
        self._keep(finished.round, model, rounds)
        reach("server.checkpointed")
        _check_worth_it(outcome)
        return finished

    def _round_result(
        self, rounds: RunRounds, outcome: RoundOutcome, kept: ArrayRecord, evaluate: EvaluateFn | None
    ) -> RoundResult:
        """Return the result of a round: the model's measures, and the spending of all clients."""
        number, measures, result = outcome.opened.attempt.round, self.measures, self.result
        self._parts.on_phase(Phase(Stage.EVALUATING, number, outcome.opened.asked))
        metrics = evaluate(number, kept) if evaluate else measures.public(kept, result.standardise)
        if metrics is not None:
            result.evaluate_metrics_serverapp[number] = metrics
        held_out = measures.held_out(number, kept, result.standardise)
        evaluations, of_clients = measures.local(outcome.evaluated)
        if of_clients:
            result.evaluate_metrics_clientapp[number] = MetricRecord(dict(of_clients))
        public = {name: float(value) for name, value in (metrics or {}).items() if isinstance(value, int | float)}
        measured = public | metrics_of_each(held_out) | of_clients
        model, clocked = partial(measures.model, kept, result.standardise), self._participation.clocked
        return RoundResult(
            round=number,
            metrics=measured | self._callbacks.measure(number, model, measured),
            spent=rounds.accounts.spent(),
            participants=outcome.participants,
            failures=outcome.failures,
            unreconciled=rounds.accounts.unreconciled,
            evaluations=evaluations,
            held_out=held_out,
            clock=outcome.ended if clocked else None,
            seconds=outcome.ended - self.clock if clocked else None,
            most_charged=rounds.accounts.most_charged(),
            user_level=self._user_level.spent() if self._user_level else None,
        )

    def _keep(self, number: int, model: GlobalModel, rounds: RunRounds) -> None:
        """Write the checkpoint from which the run can go on."""
        if self._parts.checkpoints is None:
            return
        kept = self.measures.kept
        checkpoint = Checkpoint(
            run_id=self.run_id,
            round=number,
            earlier_runs=rounds.accounts.earlier_runs,
            arrays={name: array.numpy() for name, array in model.arrays.items()},
            average={name: value.numpy() for name, value in model.average.average.items()},
            iterates=model.average.iterates,
            clipping_norms=rounds.accounts.clipping_norms,
            left_out=frozenset(rounds.accounts.left_out),
            clock=self.clock,
            strategy=read_state(self._strategy),
            random=RandomState.now(),
            user_level_clipping_norm=self._user_level.clipping_norm if self._user_level else None,
            control=rounds.control,
            kept=kept.arrays if kept else {},
            keeps=kept.algorithm if kept else "",
            callbacks=[(n, read_state(c)) for n, c in zip(self._callbacks.names, self._callbacks.each, strict=True)],
        )
        save_checkpoint(self._parts.checkpoints, checkpoint)

    def _beginning(self, initial_arrays: ArrayRecord | None) -> tuple[int, GlobalModel]:
        """The last finished round and the model after it; the random state is restored when the clients are there."""
        decay = self._plan.config.ema_decay
        if self._resume is None:
            return 0, GlobalModel.new(initial_arrays or self._new(), decay)
        write_state(self._strategy, self._resume.strategy)
        return self._resume.round, GlobalModel.restored(self._resume, decay)

    def _restore_callbacks(self) -> None:
        """Restore the callbacks' state from the checkpoint. If the resumed run has none, warn and continue."""
        remembered = self._resume.callbacks if self._resume else ()
        if remembered and not self._callbacks.each:
            log.warning("The run goes on without its callbacks: %s.", ", ".join(name for name, _ in remembered))
        for callback, (_, state) in zip(self._callbacks.each, remembered, strict=False):
            write_state(callback, state)

    def _new(self) -> ArrayRecord:
        """The model of a new run: the public one that the configuration names, or else the task's own."""
        task, file = self._plan.task, self._plan.config.initial_model
        return as_arrays(initial_parameters(file, task) if file else trainable_parameters(task.model()))

    def enlist(self, grid: Grid, timeout: float | None, *, by_messages: bool = False) -> RunRounds:
        """Wait for the clients, open their accounts, and decide how the rounds are run.

        Args:
            grid: Flower's grid.
            timeout: seconds to wait for answers; None: the time-out of the configuration.
            by_messages: whether a simulated population gets messages, too.
        """
        plan, parts = self._plan, self._parts
        registry = ClientRegistry(plan.config.node_timeout, plan.config.signing_key_file)
        if (population := population_of(grid)) is not None:
            registry.take_in(dict(zip(grid.get_node_ids(), population.enrolments(), strict=True)))
        registry.wait_for(grid, plan.config.clients)
        self._check_participation(registry.online(grid).values())
        check_named(plan, registry.online(grid).values())
        self.result.standardise = self._standardise(grid, registry)
        clients = registry.online(grid).values()
        accounts = parts.accounts(plan, self.run_id, clients, resume=self._resume, folder=parts.checkpoints)
        parts.on_open(accounts.ledger_url)
        self.measures = Measures(plan, getattr(grid, "kept", None))
        self._user_level, control = self._noise(accounts), self._restore()
        wrapped = WrappedStrategy(self._strategy, plan.config, registry, grid, self._participation)
        transport = None if by_messages else self._together(grid, registry, accounts, control)
        transport = transport or ByMessage(
            plan,
            registry,
            accounts,
            Correspondence(grid),
            timeout or plan.config.round_timeout,
            self._participation,
            control,
            self.result.standardise,
        )
        schedule: RoundSchedule = StrategyChooses(wrapped)
        if self._user_level:
            schedule = PoissonSampled(wrapped, self._user_level)
        return RunRounds(wrapped, accounts, transport, schedule, control, parts.on_phase)

    def _together(
        self, grid: Grid, registry: ClientRegistry, accounts: Books, control: ServerControl
    ) -> Transport | None:
        """Return the transport that trains a population together; None: there is none, or the run needs messages."""
        if (population := population_of(grid)) is None:
            return None
        needs_messages = {
            "local-evaluation": self._plan.config.local_evaluation,
            "a task that standardises its inputs": self.result.standardise,
            "user-level privacy": self._user_level,
            "simulated participation": self._participation.eventful,
            "a strategy that may look at each update": not averages(self._strategy),
        }
        why = [reason for reason, given in needs_messages.items() if given]
        if not why:
            return Together(registry, accounts, population, control)
        population.warn_of_messages(" and ".join(why))
        return None

    def _restore(self) -> ServerControl:
        """Restore the vectors that simulated clients kept, and return the server's control; empty for a new run."""
        if self._resume is None:
            return ServerControl()
        if self.measures.kept is not None:
            self.measures.kept.restore(self._resume.keeps, self._resume.kept)
        return self._resume.control

    def _check_participation(self, clients: Collection[EnrolledClient]) -> None:
        """Refuse, by a `ConfigError`, settings that these clients cannot follow; only their names were asked so far."""
        client_ids, deployed = [c.client_id for c in clients], any(c.public_key for c in clients)
        check_participation(self._participation, self._plan.config, client_ids, deployed=deployed)

    def _noise(self, accounts: Books) -> UserLevelReleases | None:
        """Return the user-level mechanism, which clips and noises the clients' updates; None: the run has none."""
        noise, seed, folder = self._plan.user_level, self._plan.config.seed, self._parts.checkpoints
        if noise is None or folder is None:
            return None
        book = UserLevelBook(folder, self.run_id, noise, repeatable=seed is not None)
        keystream = Keystream.secret()
        if seed is not None:
            keystream = Keystream.from_seed(seed, f"user-level/{self._plan.task.dataset}", accounts.earlier_runs)
        arrived = self._resume.user_level_clipping_norm if self._resume else None
        return UserLevelReleases(noise, book, keystream, arrived)

    def _standardise(self, grid: Grid, registry: ClientRegistry) -> Standardise | None:
        """Ask the task's own question, or read its answer again; without privacy no client is asked.

        The answer also gives a noisy number of records of each client, which is its weight if sizes are private.
        """
        question = self._plan.standardise
        if question is None:
            return None
        if self._plan.preliminary is None:
            return standardiser(question)
        check_worth_asking(self._plan, registry.online(grid).values())
        asking = Questionnaire((question,))
        asked = ask_clients(grid, self._plan.preliminary, asking, registry=registry, of_run=self.run_id)
        registry.learn({client_id: asked.records(0, client_id) for client_id in asked.told})
        return standardiser(question, asked.figures() if asked.told else ())

    def _log_round(self, result: RoundResult) -> None:
        """One line a round in Flower's log, which is what `flwr run --stream` shows; and one of who sent no update."""
        metrics = "".join(f"{name} {value:.4g}, " for name, value in result.metrics.items())
        cost = f"largest epsilon {epsilon_text(result.max_epsilon)}" if self._plan.config.privacy else NO_PRIVACY
        cost += f"; {result.user_level.text}" if result.user_level else ""
        flower_log.info("Round %d: %s%s", result.round, metrics, cost)
        if result.failures and not result.user_level:  # whose noise hides who took part
            named = [f"{client_id} ({code})" for client_id, code in islice(result.failures.items(), _NAMED)]
            more = f" and {len(result.failures) - _NAMED} more" if len(result.failures) > _NAMED else ""
            log.info("No update in round %d from %s%s.", result.round, ", ".join(named), more)

    def _warn_of_forgotten_state(self) -> None:
        for keeper in (self._strategy, *self._callbacks.each) if self._parts.checkpoints else ():
            if names := unkept_attributes(keeper):
                log.warning(
                    "No checkpoint keeps %s of %s: should the run be stopped, it would go on without. Give it "
                    "state_dict() and load_state_dict().",
                    ", ".join(names),
                    type(keeper).__name__,
                )


def _check_worth_it(outcome: RoundOutcome) -> None:
    """Raise a `RoundFailedError` if a round gave no update, unless the reason is that budgets are spent."""
    number, failures = outcome.opened.attempt.round, outcome.failures
    if outcome.opened.sampled:  # then nothing but the number of rounds may end the run
        return
    if not outcome.participants and failures.keys() - outcome.missed != outcome.exhausted:
        reasons = "; ".join(f"{client_id}: {reason}" for client_id, reason in failures.items())
        raise RoundFailedError(
            f"Round {number} brought no usable update ({reasons}). The run stops, so that no privacy is spent for "
            "nothing; the clients' own logs say what happened."
        )
