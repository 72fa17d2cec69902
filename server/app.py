"""The ServerApp of this repository: resolve the configuration, run the rounds, record them."""

from __future__ import annotations

import logging
import random
import uuid
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedprivacy.config import RunConfig, resolve
from fedprivacy.flower import PrivateStrategy
from fedprivacy.plan import RunPlan
from fedprivacy.rounds import Observer, RoundRecord
from fedprivacy.tasks import load_task
from fedprivacy.wording import epsilon_text
from server.recorder import Recorder
from server.strategies import build_strategy

log = logging.getLogger("fedprivacy.server")
flower_log = logging.getLogger("flwr")


def server_app(*observers: Observer, config: RunConfig | None = None) -> ServerApp:
    """A Flower ServerApp that trains privately.

    Args:
        observers: told of every finished round.
        config: the run's configuration; None: the run-config that Flower hands to the server.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_id = uuid.uuid4().hex
        settings = config or resolve(context.run_config)
        settings = replace(settings, out=settings.out or f"runs/{run_id}")
        _make_repeatable(settings.seed)
        plan = RunPlan(settings, load_task(settings.task))
        recorder = Recorder(Path(settings.out), plan)
        watching: list[Observer] = [recorder, _log_round, *observers]
        strategy = PrivateStrategy(build_strategy(settings), plan, run_id=run_id, observers=watching)
        try:
            strategy.start(grid)
        finally:
            recorder.finish(strategy.result.arrays)
        if strategy.stopped_because:
            log.warning("The run ended early: %s.", strategy.stopped_because)
        flower_log.info("Results are in %s.", recorder.folder.absolute())

    return app


def _log_round(record: RoundRecord) -> None:
    """One line a round in Flower's log, which is what `flwr run --stream` shows."""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
    flower_log.info("Round %d: %s; largest epsilon %s", record.round, metrics, epsilon_text(record.max_epsilon))


def _make_repeatable(seed: int | None) -> None:
    """Flower's strategies draw clients from `random`, a new model draws its weights from torch."""
    if seed is not None:
        random.seed(seed)
        torch.manual_seed(seed)


app = server_app()
