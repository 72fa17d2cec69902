"""What makes a Flower app of one's own private: a strategy from a task and from Flower's run-config."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedprivacy.flower.server import strategy as wrapper
from fedprivacy.flower.server.checkpoint import load_checkpoint
from fedprivacy.runs.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import Value
from fedprivacy.tasks import Task


class PrivateStrategy(wrapper.PrivateStrategy):
    """Wraps a Flower strategy: grants before dispatch, checks receipts, composes every client's privacy loss.

    `start` takes and returns what Flower's own `Strategy.start` does.

    Formal guarantee: see `fedprivacy.runs.accountant`.

    >>> import fedprivacy as fp
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = fp.PrivateStrategy(FedAvg(), fp.tasks.Cancer(), {"clients": 3, "epsilon": 1.0})
    >>> strategy.plan.config.epsilon, strategy.plan.task.name
    (1.0, 'cancer')

    Args:
        strategy: any Flower strategy.
        task: what is learned; the clients' `private_client` is given the same.
        run_config: settings by hyphenated key: `context.run_config`.
        resume: the folder with the checkpoint of a run that was stopped, to go on from; None: a new run.
        options: those of `fedprivacy.flower.PrivateStrategy`: checkpoints (a folder that receives one after every
            round), run_id, callbacks, observers, on_phase.

    Raises:
        ConfigError: lists everything that is wrong with the settings, for example that they name another task; or says
            why no noise meets the budget.
        RunFolderError: there is no checkpoint to go on from.
    """

    def __init__(
        self,
        strategy: Strategy,
        task: Task,
        run_config: Mapping[str, Value | None],
        *,
        resume: str | PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        checkpoint = load_checkpoint(Path(resume)) if resume else None
        plan = TrainingPlan.of(run_config, task, run_id=checkpoint.run_id if checkpoint else "")
        super().__init__(strategy, plan, resume=checkpoint, **options)
