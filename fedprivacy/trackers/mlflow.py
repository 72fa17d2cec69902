"""Tracker for MLflow: the server that MLFLOW_TRACKING_URI names, or a database in the run's folder.

`mlflow ui --backend-store-uri sqlite:///runs/digits-1/mlflow.db` shows the latter.
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
        self._private = facts.private
        remote = os.environ.get("MLFLOW_TRACKING_URI")
        store = remote or f"sqlite:///{folder.absolute() / DATABASE}"
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
