"""The ServerApp of a simulation, and the parts that every server composes its own from.

`RunStart` is a run that is about to begin or to go on; `build_strategy` builds the Flower strategy that its
configuration names. `answer_run_config` asks instead of training: the questions of a deployment's run-config.
"""

from __future__ import annotations

import inspect
import json
import logging
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedprivacy._support.durable import write_durably
from fedprivacy._support.logs import about, follow_environment
from fedprivacy._support.settings import ConfigError, key_of
from fedprivacy._support.sources import SourceError, load
from fedprivacy.flower import PrivateStrategy, RoundFailedError
from fedprivacy.flower.server.accounts import Books, RunAccounts
from fedprivacy.flower.server.ask_clients import AskResult, ask_clients
from fedprivacy.flower.server.checkpoint import Checkpoint, checkpoint_to_go_on
from fedprivacy.ledger import LedgerError
from fedprivacy.runs.callbacks import Callback, Callbacks
from fedprivacy.runs.plans.plan import QuestionPlan, TrainingPlan, questions_in
from fedprivacy.runs.records.folder import plan_of, read_run_id
from fedprivacy.runs.records.store import RunRecording
from fedprivacy.runs.settings.configuration import ASKING_KEYS, RUNS, RunConfig, Value
from fedprivacy.runs.settings.strategies import SERVER_SETTINGS, STRATEGIES, KnownStrategy
from fedprivacy.server.recorder import Recorder
from fedprivacy.tasks import Task
from fedprivacy.tasks.loader import open_task
from fedprivacy.trackers import build_trackers
from fedprivacy.values.numbers import plain
from fedprivacy.values.runs import Observer, RoundResult, RunStatus
from fedprivacy.values.series import RunFacts

log, flower_log = logging.getLogger("fedprivacy.server"), logging.getLogger("flwr")

ANSWERS = "answers.json"
"""Name of the file in the run's folder that holds a deployment's answers."""


def server_app(
    *observers: Observer,
    config: RunConfig | None = None,
    task: Task | None = None,
    accounts: type[Books] = RunAccounts,
    callbacks: Sequence[Callback] = (),
    drawn: bool = True,
) -> ServerApp:
    """A Flower ServerApp that trains privately, and that goes on with a run that was stopped if `resume` names one.

    Where the run-config has `questions`, the clients are asked instead.

    Args:
        observers: told of every finished round.
        config: the run's configuration; None: the run-config that Flower hands to the server.
        task: what is learned; None: the task that the configuration names. A run whose configuration names another one
            ends before it begins.
        accounts: what charges and grants; see `fedprivacy.flower.PrivateStrategy`.
        callbacks: of a run; see `fedprivacy.Callback`.
        drawn: whether the run leaves its figure and its report.
    """
    follow_environment()
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        if config is None and context.run_config.get("questions"):
            answer_run_config(grid, context.run_config, task)
            return
        start = RunStart.of(config or plan_of(context.run_config, task).config, task, accounts, callbacks)
        averaging = build_strategy(start.plan.config)  # before there is a folder: it may be a file that cannot be read
        trackers = build_trackers(start.plan.config.trackers)
        recorder = Recorder(start.folder, start.plan, start.run_id, trackers=trackers, resume_from=start.finished)
        strategy = PrivateStrategy(
            averaging,
            start.plan,
            run_id=start.run_id,
            accounts=accounts,
            observers=[recorder, *observers],
            on_open=recorder.on_open,
            on_phase=recorder.on_phase,
            resume=start.checkpoint,
            checkpoints=start.folder,
            callbacks=callbacks,
        )
        with about(run=start.run_id), recorder.recording(strategy.result, drawn=drawn):
            strategy.start(grid)

    return app


@dataclass(frozen=True)
class RunStart:
    """A run that is about to begin, or to go on from a checkpoint; the configuration of its plan names its folder."""

    plan: TrainingPlan
    run_id: str
    checkpoint: Checkpoint | None

    @classmethod
    def of(
        cls,
        config: RunConfig,
        task: Task | None = None,
        accounts: type[Books] = RunAccounts,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Find where the run goes on, or give it a name, and its folder one; make it repeatable if it has a seed.

        Args:
            config: checked; with `resume`, the stopped run's own.
            task: what is learned; None: the task that the configuration names.
            accounts: that the run will have.
            callbacks: the same.

        Raises:
            ConfigError: the run is without privacy, and these are not the accounts for that; or the other way round; or
                it goes on, and had other callbacks.
            RunFolderError: the folder to go on in holds no checkpoint.
        """
        accounts.check(config)
        checkpoint = checkpoint_to_go_on(Path(config.resume)) if config.resume else None
        if checkpoint:
            Callbacks(callbacks).check_goes_on(checkpoint.callback_names)
            flower_log.info("%s", going_on(checkpoint.round, config.rounds))
        begun = checkpoint.run_id if checkpoint else read_run_id(Path(config.resume)) if config.resume else ""
        run_id = begun or uuid.uuid4().hex
        config = replace(config, out=config.out or f"runs/{run_id}", resume=config.resume if checkpoint else "")
        if config.seed is not None:  # Flower's strategies draw clients from `random`, a model its weights from torch
            random.seed(config.seed)
            torch.manual_seed(config.seed)
        return cls(TrainingPlan(config, open_task(config.task, task), run_id=run_id), run_id, checkpoint)

    @property
    def folder(self) -> Path:
        """The folder for results and checkpoints."""
        return Path(self.plan.config.out)

    @property
    def finished(self) -> int | None:
        """The last finished round of a run that goes on; None: it is new."""
        return self.checkpoint.round if self.checkpoint else None


def going_on(finished: int, rounds: int) -> str:
    """Say what happens with a run that was stopped."""
    if finished >= rounds:
        return f"All {rounds} rounds are finished already: nothing is run again."
    return f"Going on after round {finished} of {rounds}."


def build_strategy(config: RunConfig) -> Strategy:
    """The configured strategy. Servers alone come here: a client imports nothing that a server names.

    A round needs as few clients as the strategy can do with: the others may have spent their budgets.

    Raises:
        ConfigError: the configuration names a source that makes no strategy, or none with these settings.
    """
    known = STRATEGIES.get(config.strategy, KnownStrategy(source=config.strategy))
    fewest = known.fewest_clients
    sampling = {"fraction_evaluate": 0.0, "min_train_nodes": fewest, "min_available_nodes": fewest}
    chosen = {name: value for name in SERVER_SETTINGS if (value := getattr(config, name)) is not None}
    fraction = 1.0 if config.user_level else config.fraction_train  # the wrapper samples clients, then
    (sampling if fraction == 1.0 else chosen)["fraction_train"] = fraction
    chosen = {known.arguments.get(name, name): value for name, value in chosen.items()}
    try:
        return _load_strategy(known.source, {**chosen, **known.fixed}, sampling)
    except SourceError as error:
        raise ConfigError(str(error)) from error


def _load_strategy(source: str, chosen: Mapping[str, float], offered: Mapping[str, float]) -> Strategy:
    """The strategy that a source names, or that its class or function makes; what is offered, it need not take.

    Raises:
        SourceError: it does not take the chosen ones, needs others, or makes something else.
    """
    found = load("strategy", source)
    signature = inspect.signature(found) if callable(found) else inspect.Signature()
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    taken = {name: value for name, value in {**offered, **chosen}.items() if any_name or name in signature.parameters}
    if ignored := chosen.keys() - taken.keys():
        keys = ", ".join(sorted(map(key_of, ignored)))
        raise SourceError(
            f"strategy is '{source}', which takes no {keys}; leave that open, or let it take the argument."
        )
    try:
        signature.bind(**taken)
    except TypeError as error:
        raise SourceError(f"strategy is '{source}', but {error}; give every argument a default.") from error
    made = found(**taken) if callable(found) else found
    if not isinstance(made, Strategy):
        kind = type(made).__name__
        raise SourceError(f"strategy is '{source}', which makes a value of type {kind}; let it make a Flower Strategy.")
    return made


def answer_run_config(grid: Grid, run_config: Mapping[str, Value], task: Task | None = None) -> None:
    """Ask a deployment's clients what its run-config says; the answers go into Flower's log, and into the run's folder.

    Raises:
        ConfigError: the settings, or the questions, are wrong.
        RoundFailedError: no client answered.
    """
    plan = QuestionPlan.of({key: value for key, value in run_config.items() if key in ASKING_KEYS}, task)
    asked = questions_in(str(run_config["questions"]))
    plan = replace(plan, config=replace(plan.config, out=plan.config.out or RUNS))
    done = ask_clients(grid, plan, asked)
    record_answers(done, plan)
    if not done.told:
        reasons = "; ".join(f"{client_id}: {reason}" for client_id, reason in done.failures.items())
        raise RoundFailedError(f"No client answered ({reasons}); the clients' own logs say what happened.")
    folder = Path(plan.config.out)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"federation": done.federation, "clients": done.clients, "failures": done.failures, "spent": done.spent}
    write_durably(folder / ANSWERS, (json.dumps(plain(facts), indent=2) + "\n").encode())
    for row in done.federation:
        group = f" ({row['group']})" if row["group"] else ""
        flower_log.info("%s%s: %s +- %s", row["figure"], group, row["value"], row["error"])


def record_answers(done: AskResult, plan: QuestionPlan) -> None:
    """Put what was asked into the run store, where pages find it: a run of one round, whose metrics are the answers.

    It is for people: where it cannot be written, the answers stand all the same.
    """
    if not done.spent:
        return
    figures = (figure for number, _ in enumerate(done.asked.questions) for figure in done.figures(number))
    metrics = {
        f"{figure.name} ({figure.group})" if figure.group else figure.name: figure.value
        for figure in figures
        if figure.value is not None
    }
    facts = RunFacts(
        run_id=done.run_id,
        name="; ".join(question.sentence_of(done.unit) for question in done.asked.questions),
        settings=plan.config.public(),
        noise_multiplier=done.event.noise_multiplier if done.event else 0.0,
        relation=plan.relation,
        metric=next(iter(metrics), ""),
        unit=str(plan.unit),
    )
    answered = tuple(sorted(done.told.keys() & done.spent.keys() - set(done.reread)))
    try:
        recording = RunRecording(done.ledger, facts)
        recording.add(RoundResult(0, {}, done.before, (), {}))
        recording.add(RoundResult(1, metrics, done.spent, answered, done.failures))
        recording.end(RunStatus.FINISHED)
        recording.flush()
        recording.close()
    except LedgerError as error:
        log.warning("The run store cannot be written; the answers are kept. %s", error)
