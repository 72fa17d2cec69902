"""The round, top to bottom: a wrapper that makes any Flower strategy account for every client's privacy."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from fedprivacy._support.failpoints import reach
from fedprivacy._support.random_state import RandomState
from fedprivacy._support.spans import span, spanned
from fedprivacy.flower.baseline.accounts import BaselineAccounts
from fedprivacy.flower.kept import KeptModels
from fedprivacy.flower.server.accounts import RunAccounts, check_named, check_worth_asking
from fedprivacy.flower.server.ask_clients import ask_clients
from fedprivacy.flower.server.asynchronous import BufferedRounds, check_known_to_average
from fedprivacy.flower.server.by_client import ClientModels, HeldOutEvaluation
from fedprivacy.flower.server.checkpoint import (
    Checkpoint,
    GlobalModel,
    as_arrays,
    forgotten,
    read_state,
    save_checkpoint,
    write_state,
)
from fedprivacy.flower.server.cohorts import CohortRounds, averages, population_of
from fedprivacy.flower.server.control import ServerControl
from fedprivacy.flower.server.exchange import Answers, Correspondence
from fedprivacy.flower.server.noisy_average import UserLevelRounds, check_averages
from fedprivacy.flower.server.registry import ClientRegistry, EnrolledClient
from fedprivacy.flower.server.replies import OpenRound, RoundOutcome
from fedprivacy.flower.server.rounds import RoundFailedError, Rounds, RoundSteps
from fedprivacy.flower.server.underway import Underway
from fedprivacy.gradients import trainable_parameters
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.standardise import standardiser
from fedprivacy.runs.callbacks import Callback, Callbacks
from fedprivacy.runs.initial_model import initial_parameters
from fedprivacy.runs.participation import buffer_of, check_participation, participation_of
from fedprivacy.runs.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.user_level_book import UserLevelBook
from fedprivacy.tasks.loader import metrics_of, scores_of
from fedprivacy.tasks.standardising import Standardise
from fedprivacy.training.evaluation import NoisySums, estimated
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.evaluation import Evaluation
from fedprivacy.values.held_out import HeldOut, metrics_of_each
from fedprivacy.values.rounds import Observer, Phase, PhaseObserver, RoundResult, Stage
from fedprivacy.values.wording import NO_PRIVACY, epsilon_text

log, flower_log = logging.getLogger("fedprivacy.server"), logging.getLogger("flwr")

Books = type[RunAccounts] | type[BaselineAccounts]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Steps = RoundSteps[Any, Any, Any]


@dataclass
class PrivateResult(Result):
    """Flower's result of a run, as far as the run has come: the model is kept whatever happens."""

    stopped_because: str = ""
    """Why the run ended before its last round; empty if it did not."""

    personal: Callable[[], Mapping[str, Tensor]] = dict
    """What simulated clients have as models of their own, flat, by client_id; empty: all use the global one."""

    standardise: Standardise | None = None
    """What inputs become before the model sees them; None: the task does not standardise."""


class PrivateStrategy(Strategy):
    """Wraps a Flower strategy: grants before dispatch, checks receipts, composes every client's privacy loss.

    The wrapped strategy samples and averages as always. It sees only clients that have budget left, and only updates
    whose receipts match their grants; the weights of its average are public (shard sizes, or the noise that each adds),
    never a count that a client sends. Flower's own client-side evaluation is off: its metrics are a release that nobody
    accounts for. With `local-evaluation` clients release noisy ones together with their updates, charged as one more
    step.

    With `ema-decay` the model that is evaluated and kept is the average of the global models. The clients receive the
    last one.

    With user-level noise (`user-level-noise-multiplier`, `user-level-epsilon`) clients join by Poisson sampling, and
    the wrapped strategy is given one update: the global model plus the noisy average of clipped differences from it.
    What that costs each client as a whole has an account of its own, see `fedprivacy.runs.user_level_book`.

    With `buffer-size` and `concurrency` rounds are asynchronous, in simulations alone: the simulated clock chooses
    clients, and the wrapped strategy is given the mean of a buffer, see `fedprivacy.flower.server.asynchronous`.

    Formal guarantee: see `fedprivacy.runs.accountant`.

    Args:
        strategy: any Flower strategy.
        plan: the run's public numbers: configuration, task, and what a local step costs.
        run_id: unique in the ledger; None: a new one.
        accounts: what charges and grants, made when the clients are there: they say whether the run is deployed. Those
            of a baseline charge nothing; a simulation alone has them.
        observers: told of every finished round, and of round 0 before the first.
        on_open: told where charges are written, once the accounts are open.
        on_phase: told what the run is about to do.
        resume: go on after this checkpoint's round, as if the run had never been stopped; None: a new run.
        checkpoints: the folder that receives a checkpoint after every finished round; None: none is kept.
        callbacks: see `fedprivacy.Callback`; `start` alone calls them.

    Raises:
        CallbackError: what is given as a callback is none.
        ConfigError: the configuration says that a run goes on, and there is no checkpoint to go on from; or that it is
            without privacy, and these are not the accounts for that; or a trace that it names cannot be read; or that
            it has user-level noise, with a strategy that needs more than an average, or no folder for its account; or
            asynchronous rounds, with a strategy that may need more; or that it goes on, and had other callbacks.

    Attributes:
        result: so far.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: TrainingPlan,
        *,
        run_id: str | None = None,
        accounts: Books = RunAccounts,
        observers: Sequence[Observer] = (),
        on_open: Callable[[str], None] = lambda _: None,
        on_phase: PhaseObserver = lambda _: None,
        resume: Checkpoint | None = None,
        checkpoints: Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if plan.config.resume and resume is None:
            raise ConfigError(
                [
                    f"resume is '{plan.config.resume}', but this app starts every run anew; leave resume open, or give "
                    "PrivateStrategy a checkpoint, as server/app.py does."
                ]
            )
        self.strategy = strategy
        self.plan = plan
        self.run_id = resume.run_id if resume else run_id or uuid.uuid4().hex
        self.result = PrivateResult()
        accounts.check(plan.config)
        self._participation = participation_of(plan.config, self.run_id)
        self._clock = resume.clock if resume else 0.0  # simulated seconds
        self._buffer = buffer_of(plan.config, self._participation)
        if self._buffer:
            check_known_to_average(strategy)
        if plan.config.user_level:
            _check_user_level(strategy, checkpoints)
        self._accounts = accounts
        self._observers = observers
        self._on_open = on_open
        self._on_phase = on_phase
        self._resume = resume
        self._checkpoints = checkpoints
        self._callbacks = Callbacks(callbacks)
        if resume:
            self._callbacks.check_goes_on(resume.callback_names)
        self._models: KeptModels | None = None  # what simulated clients keep
        self._hooked: tuple[Rounds, OpenRound] | None = None
        self._told: tuple[int, dict[str, float]] = 0, {}  # to a driver by hooks: a round, and what clients evaluated

    def start(  # noqa: PLR0917 - Flower's own signature
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> PrivateResult:
        """Run the rounds; end early, with the model kept, when no client has budget left.

        Takes and returns what Flower's own `Strategy.start` does. What is None comes from the configuration and the
        task: a new model, the rounds, the round's time-out, the evaluation on the server's public records.

        Raises:
            ConfigError: rounds are asynchronous, and the clients are not simulated in this process.
            CallbackError: a callback gives what a run cannot take.
            TooFewClientsError: the configured number of clients did not come in time.
            BudgetSpentError: no client's budget allows one step.
            RoundFailedError: a round without one usable update, or with an average that is not finite.
            TaskError: the task's `evaluate` fails.
            LedgerError: the ledger contradicts this run, or cannot be written.
        """
        evaluate, last = evaluate_fn or self._evaluate, num_rounds or self.plan.config.rounds
        if self._buffer and population_of(grid) is None:
            raise _not_simulated()
        finished, model = self._beginning(initial_arrays)
        self.result.arrays = model.kept
        if self._resume and finished >= last:
            return self.result  # no client is needed, so none is waited for
        with self._callbacks.during(self.plan, self._remind):
            rounds = self._together(self._rounds(grid, timeout), grid)
            self._before_rounds(rounds, model, evaluate)
            for number in range(finished + 1, last + 1):
                if why := self._callbacks.stop_because:
                    self._end_before(number, why)
                    break
                with span("first round" if number == finished + 1 else "later rounds", number):
                    told = self._round(rounds, number, model, train_config or ConfigRecord(), evaluate)
                if told is None:
                    break
        return self.result

    def _before_rounds(self, rounds: Steps, model: GlobalModel, evaluate: EvaluateFn) -> None:
        """Tell how things stand before the first round; of a run that goes on, draw random numbers where it stopped."""
        if self._resume:
            self._resume.random.restore()
        else:
            with span("set-up"):
                rounds.accounts.check_left()
                self._finish(rounds, RoundOutcome(OpenRound(Attempt(self.run_id, 0), model.arrays)), model, evaluate)
        self._warn_of_forgotten_state()

    def _end_before(self, number: int, why: str) -> None:
        self.result.stopped_because = why
        log.warning("The run ended before round %d: %s.", number, why)

    def _round(
        self, rounds: Steps, number: int, model: GlobalModel, config: ConfigRecord, evaluate: EvaluateFn
    ) -> RoundResult | None:
        """One round; with a second attempt where a crash has cost every client its update. None: nobody is asked."""
        for attempt, again in rounds.accounts.attempts(number):
            opened = rounds.open(attempt, model.arrays, config, again=again, at=self._clock)
            if opened.passed_over:
                outcome = RoundOutcome(opened, ended=opened.began)
                break
            if opened.ends_the_run:
                self._end_before(number, opened.why_nobody)
                return None
            answers = rounds.send(opened)
            outcome = rounds.settle(opened, answers)
            if opened.sampled or not outcome.all_lost:  # whether some are asked again must not depend on others
                break
        return self._finish(rounds, outcome, model, evaluate)

    def _finish(self, rounds: Steps, outcome: RoundOutcome, model: GlobalModel, evaluate: EvaluateFn) -> RoundResult:
        """Average and tell the observers, then keep where the run stands: what is recorded beyond that is done again.

        Raises:
            RoundFailedError: the round gave nothing, and not because budgets are spent.
        """
        number = outcome.opened.attempt.round
        aggregated, train_metrics = rounds.average(outcome)
        if train_metrics:
            self.result.train_metrics_clientapp[number] = train_metrics
        if aggregated is not None:
            model.advance(aggregated)
        kept = model.kept
        self._on_phase(Phase(Stage.EVALUATING, number, outcome.opened.asked))
        with span("evaluation"):
            metrics = evaluate(number, kept)
        if metrics is not None:
            self.result.evaluate_metrics_serverapp[number] = metrics
        held_out = self._held_out(number, kept)
        evaluations, of_clients = self._local_evaluations(rounds.evaluated(outcome))
        if of_clients:
            self.result.evaluate_metrics_clientapp[number] = MetricRecord(dict(of_clients))
        public = {name: float(value) for name, value in (metrics or {}).items() if isinstance(value, int | float)}
        measured = public | metrics_of_each(held_out) | of_clients
        finished = RoundResult(
            round=number,
            metrics=measured | self._callbacks.measure(number, partial(self._model, kept), measured),
            spent=rounds.accounts.spent(),
            participants=outcome.participants,
            failures=outcome.failures,
            unreconciled=rounds.accounts.unreconciled,
            evaluations=evaluations,
            held_out=held_out,
            clock=outcome.ended if self._participation.clocked else None,
            seconds=outcome.ended - self._clock if self._participation.clocked else None,
            buffered=outcome.buffered,
            user_level=rounds.user_level.spent() if rounds.user_level else None,
        )
        self._clock = outcome.ended
        with span("recording"):
            for observe in (self._log_round, *self._observers):
                observe(finished)
            self._callbacks.after_round(finished)
        if self._models is not None:
            self.result.personal = ClientModels(self.plan, self._models, number, kept).personal
        self.result.arrays = kept  # now, so that a run that is stopped leaves the model of its last recorded round
        rounds.accounts.sign()
        reach("server.round-recorded")
        if self._checkpoints:
            save_checkpoint(self._checkpoints, self._checkpoint(number, model, rounds))
        reach("server.checkpointed")
        sampled = outcome.opened.sampled  # then nothing but the number of rounds may end the run
        answered = outcome.participants or outcome.failures.keys() - outcome.missed == outcome.exhausted
        if not sampled and not answered:
            reasons = "; ".join(f"{client_id}: {reason}" for client_id, reason in outcome.failures.items())
            raise RoundFailedError(
                f"Round {number} brought no usable update ({reasons}). The run stops, so that no privacy is spent for "
                "nothing; the clients' own logs say what happened."
            )
        return finished

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open a round for whoever drives this strategy by Flower's hooks; `start` does without them.

        Returns no message when no client has budget left.

        Raises:
            ConfigError: rounds are asynchronous, which messages cannot be.
        """
        if self._buffer:
            raise _not_simulated()
        rounds = self._hooked[0] if self._hooked else self._rounds(grid, None)
        attempt, again = next(rounds.accounts.attempts(server_round))
        opened = rounds.open(attempt, arrays, config, again=again, at=self._clock)
        self._hooked = rounds, opened
        return rounds.reached(opened)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Settle the round that `configure_train` has opened, and let the wrapped strategy average it.

        Raises:
            ValueError: it has not opened this one.
        """
        if self._hooked is None or self._hooked[1].attempt.round != server_round:
            raise ValueError(f"round {server_round} was not opened: configure_train comes before aggregate_train.")
        rounds, opened = self._hooked
        answers: dict[int, Message] = {}
        for reply in replies:
            answers.setdefault(reply.metadata.src_node_id, reply)
        outcome = rounds.settle(opened, Answers(answers))
        self._clock = outcome.ended
        self._told = server_round, self._local_evaluations(rounds.evaluated(outcome))[1]
        return rounds.average(outcome)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: evaluation is on the server's public records, and clients' came with their updates."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What local evaluations told, which came with the round's updates; None: there were none."""
        number, metrics = self._told
        return MetricRecord(dict(metrics)) if number == server_round and metrics else None

    def summary(self) -> None:
        """Log the wrapped strategy's settings."""
        self.strategy.summary()

    @spanned("set-up")
    def _beginning(self, initial_arrays: ArrayRecord | None) -> tuple[int, GlobalModel]:
        """The last finished round and the model after it; the random state is restored when the clients are there."""
        decay = self.plan.config.ema_decay
        if self._resume is None:
            return 0, GlobalModel.new(initial_arrays or self._new(), decay)
        write_state(self.strategy, self._resume.strategy)
        return self._resume.round, GlobalModel.restored(self._resume, decay)

    def _remind(self) -> None:
        """Let the callbacks of a run that goes on remember; with none at all it goes on without."""
        remembered = self._resume.callbacks if self._resume else ()
        if remembered and not self._callbacks.each:
            log.warning("The run goes on without its callbacks: %s.", ", ".join(name for name, _ in remembered))
        for callback, (_, state) in zip(self._callbacks.each, remembered, strict=False):
            write_state(callback, state)

    def _new(self) -> ArrayRecord:
        """The model of a run that begins: a public one, where the configuration names it, or the task's own."""
        task, file = self.plan.task, self.plan.config.initial_model
        return as_arrays(initial_parameters(file, task) if file else trainable_parameters(task.model()))

    @spanned("set-up")
    def _rounds(self, grid: Grid, timeout: float | None) -> Rounds:
        """Wait for the clients, and open their accounts."""
        config = self.plan.config
        registry = ClientRegistry(config.node_timeout, config.signing_key_file)
        if (population := population_of(grid)) is not None:
            registry.take_in(dict(zip(grid.get_node_ids(), population.enrolments(), strict=True)))
        registry.wait_for(grid, config.clients)
        self._check_participation(registry.online(grid).values())
        check_named(self.plan, registry.online(grid).values())
        self.result.standardise = self._standardise(grid, registry)
        clients = registry.online(grid).values()
        with span("opening accounts"):
            accounts = self._accounts(self.plan, self.run_id, clients, resume=self._resume, folder=self._checkpoints)
        self._on_open(accounts.ledger_url)
        correspondence, timeout = Correspondence(grid), timeout or config.round_timeout
        return Rounds(
            self.strategy,
            self.plan,
            registry,
            accounts,
            correspondence,
            timeout,
            self._on_phase,
            self._participation,
            self.result.standardise,
            self._user_level(accounts),
            self._kept(grid),
        )

    def _kept(self, grid: Grid) -> ServerControl:
        """What a run that goes on has kept: its clients', where they are simulated here, and the server's own."""
        kept: KeptModels | None = getattr(grid, "kept", None)
        self._models = kept
        if self._resume is None:
            return ServerControl()
        if kept is not None:
            kept.restore(self._resume.keeps, self._resume.kept)
        return self._resume.control

    def _together(self, rounds: Rounds, grid: Grid) -> Steps:
        """Rounds in which a population trains together, where all that its clients would send is an average's part."""
        if (population := population_of(grid)) is None:
            return rounds
        if self._buffer and isinstance(rounds.accounts, RunAccounts):
            cohorts = CohortRounds(rounds, rounds.accounts, population)
            underway = self._resume.underway if self._resume else None
            return BufferedRounds(cohorts, rounds.accounts, self._buffer, underway or Underway())
        needs_messages = {
            "local-evaluation": self.plan.config.local_evaluation,
            "a task that standardises its inputs": rounds.standardise,
            "user-level privacy": rounds.user_level,
            "simulated participation": self._participation.eventful,
            "a strategy that may look at each update": not averages(self.strategy),
        }
        why = [reason for reason, given in needs_messages.items() if given]
        if not why:
            return CohortRounds(rounds, rounds.accounts, population)
        population.warn_of_messages(" and ".join(why))
        return rounds

    def _check_participation(self, clients: Collection[EnrolledClient]) -> None:
        """Refuse, by a `ConfigError`, what these clients cannot do; none has been asked for anything but its name."""
        client_ids, deployed = [c.client_id for c in clients], any(c.public_key for c in clients)
        check_participation(self._participation, self.plan.config, client_ids, deployed=deployed)

    def _user_level(self, accounts: RunAccounts | BaselineAccounts) -> UserLevelRounds | None:
        """What clips and noises the clients' updates; None: nothing does."""
        plan, seed = self.plan.user_level, self.plan.config.seed
        if plan is None or self._checkpoints is None:
            return None
        book = UserLevelBook(self._checkpoints, self.run_id, plan, repeatable=seed is not None)
        keystream = Keystream.secret()
        if seed is not None:
            keystream = Keystream.from_seed(seed, f"user-level/{self.plan.task.dataset}", accounts.earlier_runs)
        arrived = self._resume.user_level_clipping_norm if self._resume else None
        return UserLevelRounds(plan, book, keystream, arrived)

    def _standardise(self, grid: Grid, registry: ClientRegistry) -> Standardise | None:
        """Ask the task's own question, or read its answer again; without privacy nobody is asked.

        The answer also tells about how many records each client has: that is its weight, where sizes are private.
        """
        question = self.plan.standardise
        if question is None:
            return None
        if self.plan.preliminary is None:
            return standardiser(question)
        check_worth_asking(self.plan, registry.online(grid).values())
        asked = ask_clients(grid, self.plan.preliminary, Questionnaire((question,)), registry=registry)
        registry.learn({client_id: asked.records(0, client_id) for client_id in asked.told})
        return standardiser(question, asked.figures() if asked.told else ())

    def _held_out(self, number: int, arrays: ArrayRecord) -> dict[str, HeldOut]:
        """What the simulated clients' models score on their held-out records, where they are measured now."""
        if self._models is None:
            return {}
        evaluation = HeldOutEvaluation(self.plan, self._models)
        return evaluation.measure(number, arrays, self.result.standardise) if evaluation.due(number) else {}

    def _evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord(dict(metrics_of(self.plan.task, self._model(arrays))))

    def _model(self, arrays: ArrayRecord) -> nn.Module:
        """A model of the task with these parameters, for evaluation."""
        model = self.plan.task.model()
        model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        return (model if self.result.standardise is None else nn.Sequential(self.result.standardise, model)).eval()

    def _local_evaluations(self, released: Mapping[str, NoisySums]) -> tuple[dict[str, Evaluation], dict[str, float]]:
        """What local evaluations tell: by client, and of all of them together, as metrics."""
        if not released:
            return {}, {}
        scores = scores_of(self.plan.task)
        by_client = {client_id: estimated(scores, [sums]) for client_id, sums in released.items()}
        return by_client, estimated(scores, list(released.values())).metrics

    def _checkpoint(self, number: int, model: GlobalModel, rounds: Steps) -> Checkpoint:
        accounts, user_level = rounds.accounts, rounds.user_level
        return Checkpoint(
            run_id=self.run_id,
            round=number,
            earlier_runs=accounts.earlier_runs,
            arrays={name: array.numpy() for name, array in model.arrays.items()},
            average={name: value.numpy() for name, value in model.average.average.items()},
            iterates=model.average.iterates,
            clipping_norms=accounts.clipping_norms,
            left_out=frozenset(accounts.left_out),
            clock=self._clock,
            strategy=read_state(self.strategy),
            random=RandomState.now(),
            user_level_clipping_norm=user_level.clipping_norm if user_level else None,
            underway=rounds.underway,
            control=rounds.control,
            kept=self._models.arrays if self._models else {},
            keeps=self._models.algorithm if self._models else "",
            callbacks=[(n, read_state(c)) for n, c in zip(self._callbacks.names, self._callbacks.each, strict=True)],
        )

    def _log_round(self, result: RoundResult) -> None:
        """One line a round in Flower's log, which is what `flwr run --stream` shows."""
        metrics = "".join(f"{name} {value:.4g}, " for name, value in result.metrics.items())
        cost = f"largest epsilon {epsilon_text(result.max_epsilon)}" if self.plan.config.privacy else NO_PRIVACY
        cost += f"; {result.user_level.text}" if result.user_level else ""
        flower_log.info("Round %d: %s%s", result.round, metrics, cost)

    def _warn_of_forgotten_state(self) -> None:
        for keeper in (self.strategy, *self._callbacks.each) if self._checkpoints else ():
            if names := forgotten(keeper):
                log.warning(
                    "No checkpoint keeps %s of %s: should the run be stopped, it would go on without. Give it "
                    "state_dict() and load_state_dict().",
                    ", ".join(names),
                    type(keeper).__name__,
                )


def _not_simulated() -> ConfigError:
    return ConfigError(
        [
            "buffer-size and concurrency make rounds asynchronous, which are simulated: with fedprivacy's own client "
            "app, by the in-process engine; leave both open here."
        ]
    )


def _check_user_level(strategy: Strategy, folder: Path | None) -> None:
    """Refuse what a run with user-level noise cannot do with, by a `ConfigError`."""
    check_averages(strategy)
    if folder is None:
        raise ConfigError(
            [
                "user-level noise is charged to an account in the run's folder, and there is none; give "
                "PrivateStrategy checkpoints, a folder."
            ]
        )
