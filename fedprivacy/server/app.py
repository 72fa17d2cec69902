"""The ServerApp of a simulation, and the parts that every server composes its own from."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedprivacy._support.logs import about, follow_environment
from fedprivacy.flower import PrivateStrategy
from fedprivacy.flower.server.accounts import Books, RunAccounts
from fedprivacy.flower.server.checkpoint import Checkpoint, checkpoint_to_go_on
from fedprivacy.runs.callbacks import Callback, Callbacks
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import plan_of, read_run_id
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.server.question_run import answer_run_config
from fedprivacy.server.recorder import Recorder
from fedprivacy.server.strategies import build_strategy
from fedprivacy.tasks import Task, load_task
from fedprivacy.trackers import build_trackers
from fedprivacy.values.runs import Observer

flower_log = logging.getLogger("flwr")


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
        return cls(TrainingPlan(config, task or load_task(config.task), run_id=run_id), run_id, checkpoint)

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
