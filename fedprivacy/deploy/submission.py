"""A run that is submitted to a deployment and followed to its end: what it came to, and not only that its log ended.

`flwr run --stream` ends with 0 after a run that failed. Here the SuperLink is asked how the run ended.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedprivacy._support.logs import EventFormatter, LogFormat
from fedprivacy.deploy.app_folder import checked_plan
from fedprivacy.deploy.federation import DeploymentError, program, quiet_environment, reply_in, write_toml
from fedprivacy.deploy.processes import UNBUFFERED, Relay
from fedprivacy.flower.server.checkpoint import CHECKPOINT
from fedprivacy.flower.unpublished import COMPLETED, FINISHED, PENDING
from fedprivacy.runs.records.folder import check_unused, new_run_folder
from fedprivacy.runs.settings.configuration import RUNS, ConfigError, Value

_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Changed): .+")
"""The last line of a traceback, or what a log says of an error."""

POLL = 1.0
"""Seconds between two looks at a run."""

START = 15.0
"""Seconds within which a run starts on a server that has nothing else to do."""

PATIENCE = 60.0
"""Seconds after the end of a run's log within which the run has ended, too."""


class Submission(NamedTuple):
    """A run, checked before anything starts: its app, its settings, and where its results will be."""

    app: Path
    settings: dict[str, Value]
    out: Path

    @classmethod
    def of(cls, app: Path, run_config: Path) -> Submission:
        """Check a run's settings, and give it a folder where they name none: runs/NAME-N beside their file.

        Raises:
            SetupError: there is no Flower app.
            ConfigError, RunFolderError: lists everything that is wrong with the settings.
        """
        try:
            settings: dict[str, Value] = tomllib.loads(run_config.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"run-config is '{run_config}', which cannot be read ({error}); name a file.") from error
        base = run_config.resolve().parent  # the server works elsewhere: a relative path would be another one there
        named = {key: str(base / str(settings[key])) for key in ("out", "resume") if settings.get(key)}
        settings |= named or {"out": new_run_folder(str(settings.get("name") or app.resolve().name), base / RUNS)}
        resumed = named.get("resume")
        out = Path(resumed or str(settings["out"]))
        if plan := checked_plan(app, settings):
            plan.check_limited()
        if not resumed:
            check_unused(out)
        return cls(app.resolve(), settings, out)

    @property
    def continuation(self) -> str:
        """The way to go on with a run that did not complete: its folder, the line to write, the command to type."""
        if not (self.out / CHECKPOINT).exists():
            return f"No checkpoint is in {self.out}, so it cannot be resumed: start it anew."
        return (
            f'To go on after its last finished round, write resume = "{self.out}" into the file of its settings, leave '
            f"the other lines as they are, and type 'fedprivacy deploy run {self.app}' again with that file."
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator's `flwr`, with the connection of its configuration that leads to the SuperLink."""

    connection: str

    def run(self, submission: Submission, show: Callable[[str], None]) -> None:
        """Submit a run, show its log line by line, and return when it has completed.

        Raises:
            DeploymentError: it was not accepted, or ended otherwise; says why, as far as the log does.
        """
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "run.toml"
            write_toml(config, {"": submission.settings})
            started = self._ask_flower("run", submission.app, self.connection, "--run-config", config)
        run_id = str(started["run-id"])
        try:
            self._wait_for_start(run_id, show)
            status, details, log = self._follow(run_id, show)
        except KeyboardInterrupt:
            raise DeploymentError(
                f"Run {run_id} goes on, and is not watched any more; {self._remedies(run_id)}."
            ) from None
        except DeploymentError as error:  # the server may be gone
            raise DeploymentError(f"{error}\n{submission.continuation}") from error
        if status != COMPLETED:
            errors = [found for event in log for found in _ERROR.findall(event)]
            raise DeploymentError(
                f"Run {run_id} ended as {status}: {errors[-1] if errors else details}\n{submission.continuation}"
            )

    def waiting(self) -> dict[str, float]:
        """Return the runs that nobody has started yet, each with the seconds since it was submitted.

        Raises:
            DeploymentError: the SuperLink does not say.
        """
        pending = [run for run in self._ask_flower("ls", self.connection)["runs"] if run["status"] == PENDING]
        since = {str(run["run-id"]): datetime.fromisoformat(run["pending-at"]) for run in pending}
        return {run_id: (datetime.now(UTC) - at).total_seconds() for run_id, at in since.items()}

    def _wait_for_start(self, run_id: str, show: Callable[[str], None]) -> None:
        """Wait until somebody starts the run; say why it may be late."""
        late = time.monotonic() + START
        while self._status(run_id)[0] == PENDING:
            if time.monotonic() > late:
                show(
                    f"Run {run_id} still waits for the SuperExec, which starts runs. See that it is up "
                    "('systemctl status fedprivacy-superexec', 'fedprivacy deploy check .'); this goes on waiting."
                )
                late = float("inf")
            time.sleep(POLL)

    def _follow(self, run_id: str, show: Callable[[str], None]) -> tuple[str, str, list[str]]:
        """Show a run's log to its end; return Flower's word for how the run ended, what it says besides, and the log.

        A log that breaks off while the run goes on is taken up again: Flower tells it from its first line. A SuperLink
        that does not answer may be starting again: the run waits for it, as this does.
        """
        log: list[str] = []
        news = answered = time.monotonic()
        while True:
            told = self._show_events(run_id, log, show)
            news = time.monotonic() if len(told) > len(log) else news
            log = max(log, told, key=len)
            try:
                status, details = self._status(run_id)
                answered = time.monotonic()
            except DeploymentError:
                if time.monotonic() - max(answered, news) > PATIENCE:
                    raise
                time.sleep(POLL)
                continue
            if status.startswith(FINISHED):
                return status, details, log
            if time.monotonic() - news > PATIENCE:
                raise DeploymentError(
                    f"The log of run {run_id} ended, and the run is {status}; {self._remedies(run_id)}."
                )
            time.sleep(POLL)

    def _show_events(self, run_id: str, known: Sequence[str], show: Callable[[str], None]) -> list[str]:
        """The events of a run's log, in whatever form the server writes it, as texts without their times; those that
        are not known yet are shown, with their times, as they come.
        """
        command = [str(program("flwr")), "log", run_id, self.connection, "--stream"]
        formatter, events = EventFormatter(LogFormat.TEXT), list[str]()

        def take(event: logging.LogRecord) -> None:
            time, _, text = formatter.format(event).partition(" ")
            events.append(text)
            if known[len(events) - 1 : len(events)] != events[-1:]:
                show(f"{time} {text}")

        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment() | UNBUFFERED
        ) as stream:
            assert stream.stdout is not None  # it was asked for
            Relay(stream.stdout.fileno(), take).run()
        return events

    def _status(self, run_id: str) -> tuple[str, str]:
        """Flower's word for how a run stands, and what it says besides."""
        (run,) = self._ask_flower("ls", self.connection, "--run-id", run_id)["runs"]
        return run["status"], run["status-details"]

    def _remedies(self, run_id: str) -> str:
        return f"'flwr ls {self.connection}' shows it, 'flwr stop {run_id} {self.connection}' ends it"

    def _ask_flower(self, *arguments: str | Path) -> Any:
        """The answer of a `flwr` command, as JSON."""
        command = [program("flwr"), *arguments, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        try:
            return reply_in(done.stdout, f"flwr {arguments[0]}")
        except ValueError:
            raise DeploymentError(f"flwr {arguments[0]} failed:\n{done.stdout}{done.stderr}") from None


def _environment() -> dict[str, str]:
    """The operator's own, in which `flwr` finds its configuration."""
    return os.environ | quiet_environment()
