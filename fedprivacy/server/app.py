"""The ServerApp of this repository: resolve the configuration, run the rounds, record them."""

from __future__ import annotations

import logging
import random
import shlex
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context
from flwr.app.user_config import UserConfig
from flwr.serverapp import Grid, ServerApp

from fedprivacy.flower import PrivateStrategy, RoundFailedError, TooFewClientsError
from fedprivacy.flower.server.checkpoint import CHECKPOINT, load_checkpoint
from fedprivacy.ledger import LedgerError
from fedprivacy.runs.configuration import RunConfig, resolve
from fedprivacy.runs.plan import RunPlan
from fedprivacy.runs.resuming import plan_of
from fedprivacy.server.recorder import Recorder
from fedprivacy.server.strategies import build_strategy
from fedprivacy.tasks import Task, load_task
from fedprivacy.trackers import build_trackers
from fedprivacy.values.rounds import Observer, RoundResult
from fedprivacy.values.runs import RunStatus
from fedprivacy.values.wording import epsilon_text

log = logging.getLogger("fedprivacy.server")
flower_log = logging.getLogger("flwr")


def server_app(*observers: Observer, config: RunConfig | None = None, task: Task | None = None) -> ServerApp:
    """A Flower ServerApp that trains privately, and that goes on with a run that was stopped if `resume` names one.

    Args:
        observers: told of every finished round.
        config: the run's configuration; None: the run-config that Flower hands to the server.
        task: what is learned; None: the task that the configuration names. A run whose configuration names another one
            ends before it begins.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = config or _configured(context.run_config, task)
        resume = load_checkpoint(Path(settings.resume)) if settings.resume else None
        run_id = resume.run_id if resume else uuid.uuid4().hex
        settings = replace(settings, out=settings.out or f"runs/{run_id}")
        _make_repeatable(settings.seed)
        plan = RunPlan(settings, task or load_task(settings.task))
        averaging = build_strategy(settings)
        recorder = Recorder(
            Path(settings.out),
            plan,
            run_id,
            ledger_url=lambda: strategy.ledger_url,
            trackers=build_trackers(settings.trackers),
            resume_from=resume.round if resume else None,
        )
        if resume:
            flower_log.info("%s", going_on(resume.round, settings.rounds))
        strategy = PrivateStrategy(
            averaging,
            plan,
            run_id=run_id,
            observers=[recorder, _log_round, *observers],
            on_phase=recorder.on_phase,
            resume=resume,
            checkpoints=recorder.folder,
        )
        status = RunStatus.FAILED
        try:
            with _saying_how_to_go_on(recorder.folder):
                strategy.start(grid)
            status = RunStatus.STOPPED if strategy.stopped_because else RunStatus.FINISHED
        finally:
            recorder.finish(strategy.result.arrays, status)
        if strategy.stopped_because:
            log.warning("The run ended early: %s.", strategy.stopped_because)
        flower_log.info("Results are in %s.", recorder.folder.absolute())

    return app


def going_on(finished: int, rounds: int) -> str:
    """What happens with a run that was stopped."""
    if finished >= rounds:
        return f"All {rounds} rounds are finished already: nothing is run again."
    return f"Going on after round {finished} of {rounds}."


def _configured(run_config: UserConfig, task: Task | None) -> RunConfig:
    return plan_of(run_config, task).config if run_config.get("resume") else resolve(run_config, task)


@contextmanager
def _saying_how_to_go_on(folder: Path) -> Iterator[None]:
    """Let the errors that end a run early say how to continue it, once it has a finished round."""
    try:
        yield
    except (LedgerError, RoundFailedError, TooFewClientsError) as error:
        if (folder / CHECKPOINT).exists():
            where = shlex.quote(str(folder))
            error.add_note(
                f"To go on after the last finished round: fedprivacy simulate --resume {where}\n"
                f"In a deployment: start the run again with its own settings and resume = '{folder}'."
            )
        raise


def _log_round(record: RoundResult) -> None:
    """One line a round in Flower's log, which is what `flwr run --stream` shows."""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
    flower_log.info("Round %d: %s; largest epsilon %s", record.round, metrics, epsilon_text(record.max_epsilon))


def _make_repeatable(seed: int | None) -> None:
    """Flower's strategies draw clients from `random`, a new model draws its weights from torch."""
    if seed is not None:
        random.seed(seed)
        torch.manual_seed(seed)


app = server_app()
