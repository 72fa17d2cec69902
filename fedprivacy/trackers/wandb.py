"""Tracker for Weights & Biases, offline. To upload a run: `wandb sync runs/digits-1/wandb/offline-run-*`."""

from __future__ import annotations

import os
from pathlib import Path

from fedprivacy.trackers.tracker import PROJECT, guarantee, scalars, settings
from fedprivacy.values.series import RoundPoint, RunFacts


class WandbTracker:
    """Tracker that writes a run of the project "fedprivacy" into the run's folder.

    Nothing leaves the machine, whatever WANDB_MODE says. Even for offline runs, W&B reports errors and usage: therefore
    WANDB_ERROR_REPORTING is set to false in this process. The file holds the data recorded here and the versions of
    Python and W&B, but neither host, user, command, code nor console. A resumed run writes a second file with the same
    id.

    Raises:
        ImportError: W&B is not installed.
    """

    def __init__(self) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        from wandb import Settings, init

        self._init = init
        self._settings = Settings(
            mode="offline",
            silent=True,
            host="",
            console="off",
            symlink=False,
            save_code=False,
            x_save_requirements=False,
            x_disable_machine_info=True,
        )

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """Start W&B's process, which writes the file."""
        self._private = facts.private
        self._run = self._init(
            project=PROJECT,
            id=facts.run_id,
            name=facts.name,
            dir=folder.absolute(),
            mode="offline",
            reinit="create_new",
            config=settings(facts) | guarantee(facts),
            settings=self._settings,
        )

    def record(self, point: RoundPoint) -> None:
        """Write a round."""
        self._run.log(scalars(point, private=self._private), step=point.round)

    def end(self, status: str) -> None:
        """Write the status and close the file."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)
