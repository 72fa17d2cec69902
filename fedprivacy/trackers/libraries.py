"""Trackers for TensorBoard, MLflow and Weights & Biases; each imports its library when it is built.

TensorBoard: event files in the run's folder; `tensorboard --logdir runs` shows all runs, also live.

MLflow: the server that MLFLOW_TRACKING_URI names, or a database in the run's folder;
`mlflow ui --backend-store-uri sqlite:///runs/digits-1/mlflow.db` shows the latter.

Weights & Biases, offline. To upload a run: `wandb sync runs/digits-1/wandb/offline-run-*`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fedprivacy.trackers.tracker import PROJECT, guarantee, scalars, settings
from fedprivacy.values.series import RoundPoint, RunFacts

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""Name of the folder of event files, inside the run's folder."""

_FLUSH_SECONDS = 1
"""Seconds after which a round is on disk. TensorBoard itself looks every five seconds."""


class TensorBoardTracker:
    """Tracker that writes a scalar for every number, and the settings and the status as text.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = SummaryWriter
        self._writer: SummaryWriter | None = None

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """Remember the run; its first round opens the file."""
        self._folder, self._private = folder / FOLDER, facts.private
        rows = [f"| {key} | {value} |" for key, value in (settings(facts) | guarantee(facts)).items()]
        self._settings = "\n".join(["| setting | value |", "|---|---|", *rows])  # Markdown, which TensorBoard shows

    def record(self, point: RoundPoint) -> None:
        """Write a round. The first round of a resumed run replaces this and later rounds of the earlier file."""
        if self._writer is None:
            self._writer = self._open(str(self._folder), purge_step=point.round, flush_secs=_FLUSH_SECONDS)
            self._writer.add_text("settings", self._settings, point.round)
        for name, value in scalars(point, private=self._private).items():
            self._writer.add_scalar(name, value, point.round)

    def end(self, status: str) -> None:
        """Write the status and close the file."""
        if self._writer is not None:
            self._writer.add_text("status", status)
            self._writer.close()


DATABASE = "mlflow.db"
"""Name of the database in the run's folder. MLflow no longer develops its store of plain files."""

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")

_MAKE_TABLES = """
import mlflow
try:
    mlflow.MlflowClient()
except Exception as error:
    print(error)
    raise
"""

_UNFIT = re.compile(r"[^/\w.\- ]")
"""Pattern of characters that MLflow refuses in a name; it would refuse the whole round."""


class MlflowTracker:
    """Tracker that writes a run of the experiment "fedprivacy": settings, rounds as steps, and the guarantee as tags.

    A resumed run is found by its tag `run_id`, and continues there. Infinity becomes the largest double, as in MLflow.
    Nothing is reported to MLflow's makers: in this process, MLFLOW_DISABLE_TELEMETRY is set.

    Raises:
        ImportError: MLflow is not installed.
    """

    def __init__(self) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow import MlflowClient

        self._connect = MlflowClient

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """Find the run, or create it."""
        from sqlalchemy import URL

        self._private = facts.private
        remote = os.environ.get("MLFLOW_TRACKING_URI")
        # The driver is named because MLflow makes the parent folder of a "sqlite:///" URL without decoding its name.
        local = URL.create("sqlite+pysqlite", database=str(folder.absolute() / DATABASE))
        store = remote or local.render_as_string()
        _make_tables(store)
        self._client = self._connect(tracking_uri=store)
        artifacts = None if remote else (folder.absolute() / "mlflow-artifacts").as_uri()
        self._run_id = self._run(_experiment(self._client, artifacts), facts)

    def record(self, point: RoundPoint) -> None:
        """Write a round in one request."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        metrics = [
            Metric(normpath(_UNFIT.sub("_", name)), value, now, point.round)
            for name, value in scalars(point, private=self._private).items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics, synchronous=True)

    def end(self, status: str) -> None:
        """Write the status."""
        self._client.set_terminated(self._run_id, status=_STATUS[status])

    def _run(self, experiment_id: str, facts: RunFacts) -> str:
        """Return MLflow's id of the run."""
        from mlflow.entities import Param

        found = self._client.search_runs([experiment_id], f"tags.run_id = '{facts.run_id}'", max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        tags = {key: str(value) for key, value in {"run_id": facts.run_id, **guarantee(facts)}.items()}
        run_id = str(self._client.create_run(experiment_id, tags=tags, run_name=facts.name).info.run_id)
        self._client.log_batch(run_id, params=[Param(key, str(value)) for key, value in settings(facts).items()])
        return run_id


def _make_tables(store: str) -> None:
    """Create the tables of a database in a separate process.

    MLflow does so by Alembic, which keeps its connection in a global variable: in this process, two runs at once could
    make each other's tables.
    """
    if urlsplit(store).scheme.partition("+")[0] not in _DATABASES:
        return
    made = subprocess.run(
        [sys.executable, "-Pc", _MAKE_TABLES],
        # Not an argument, which others can see: it may hold a password.
        env=os.environ | {"MLFLOW_TRACKING_URI": store},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise RuntimeError(made.stdout.strip() or made.stderr.strip())


def _experiment(client: MlflowClient, artifacts: str | None) -> str:
    """Return the experiment's id; another run may create it at the same time."""
    from mlflow import MlflowException

    try:
        return str(client.create_experiment(PROJECT, artifact_location=artifacts))
    except MlflowException:
        if (found := client.get_experiment_by_name(PROJECT)) is None:
            raise
        return str(found.experiment_id)


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
        self._run.log(scalars(point, private=self._private), step=point.round)

    def end(self, status: str) -> None:
        """Write the status and close the file."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status == "failed" else 0)
