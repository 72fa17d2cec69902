"""A rehearsal of a deployment on one host: three hospitals, TLS, authenticated SuperNodes, a few rounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.deploy.environment import Scalar
from fedprivacy.deploy.federation import DeploymentError, LoopbackFederation, RunStatus
from fedprivacy.deploy.keys import ClientKeys
from fedprivacy.deploy.processes import SupervisedProcess, Supervisor
from fedprivacy.runs.configuration import LEDGER

RUN_TIMEOUT = 600.0
"""Seconds within which the run must end."""

DataWriter = Callable[[str, Path], None]
"""Writes a client's records: takes the client's name and its own, empty folder."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a rehearsal left behind.

    Attributes:
        out: folder of the run's results (`rounds.jsonl`, `report.html`, ...).
        ledger: SQLAlchemy URL of the server's ledger.
        logs: folder of the processes' log files.
        status: how Flower says that the run ended.
        seconds: wall-clock time, from keys to the last process stopped.
    """

    out: Path
    ledger: str
    logs: Path
    status: RunStatus
    seconds: float


def run_demo(
    directory: Path,
    app: Path,
    write_data: DataWriter,
    *,
    clients: Sequence[str],
    run_config: Mapping[str, Scalar] | None = None,
    node_config: Mapping[str, Scalar] | None = None,
    timeout: float = RUN_TIMEOUT,
    console: Console | None = None,
) -> DemoResult:
    """Deploy on the loopback interface, run the app once, stop everything.

    Args:
        directory: new folder for keys, data, logs, state and results.
        app: folder of the Flower app, with its `pyproject.toml`.
        write_data: called for each client.
        clients: their names.
        run_config: added to `out`, `ledger`, `signing-key` and `clients`, which the rehearsal sets.
        node_config: added to `folder`, `client-id`, `key`, `server-key` and, where the run names one, `task`, which the
            rehearsal sets for each client; for example each client's own budget.
        timeout: seconds within which the run must end.
        console: shows progress; None: no output.

    Raises:
        DeploymentError: the run failed; the message ends with the ServerApp's log.
        ProcessError: a process did not start, did not connect, or did not end.
        KeyFileError: `directory` holds keys already, or a client's name is not usable.
    """
    directory = directory.resolve()
    progress = _Progress(console or Console(quiet=True))
    out, ledger = directory / "results", f"sqlite:///{directory / 'results' / LEDGER}"
    with Supervisor(directory / "logs") as supervisor:
        federation = LoopbackFederation(supervisor, directory, clients)
        progress.say(f"keys: a certificate authority, a server certificate, {len(clients)} client keys")
        federation.start_superlink()
        signing_key = directory / "superlink" / "signing.key"
        task = {"task": run_config["task"]} if run_config and "task" in run_config else {}
        common = {"server-key": server_public_key(server_key(signing_key)), **task, **(node_config or {})}
        node_configs = _prepare_clients(federation.keys.clients, directory / "data", write_data, common)
        federation.wait_for_superlink()
        progress.say(f"SuperLink on {federation.address}: TLS, SuperNode authentication")
        keys = federation.keys.clients
        federation.register(list(keys.values()))
        progress.say(f"registered {', '.join(clients)} by their public keys")
        nodes = [federation.start_supernode(keys[name], node_configs[name]) for name in clients]
        federation.wait_until_online(nodes)
        progress.say(f"{len(nodes)} SuperNodes online, each with its own data folder")
        own = {"out": str(out), "ledger": ledger, "signing-key": str(signing_key)}
        settings = {**(run_config or {}), "clients": len(clients), **own}
        run = federation.start_run(app.resolve(), settings)
        _follow(run, out, timeout, progress)
        status = federation.status()
        if not status.completed:
            raise DeploymentError(f"The run ended as {status.status}. The end of {run.log}:\n{run.tail(40)}")
        progress.say(f"run {status.run_id} {status.status}")
    progress.say("every process stopped")
    return DemoResult(out=out, ledger=ledger, logs=directory / "logs", status=status, seconds=progress.seconds)


def _prepare_clients(
    clients: Mapping[str, ClientKeys], data: Path, write_data: DataWriter, common: Mapping[str, Scalar]
) -> dict[str, dict[str, Scalar]]:
    """Give each client its data folder; returns the clients' node configurations."""
    node_configs: dict[str, dict[str, Scalar]] = {}
    for name, keys in clients.items():
        folder = data / name
        folder.mkdir(parents=True)
        write_data(name, folder)
        node_configs[name] = {"folder": str(folder), "client-id": name, "key": str(keys.private_key), **common}
    return node_configs


class _Progress:
    """Lines with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, line: str) -> None:
        self._console.print(f"[dim]{self.seconds:6.1f} s[/]  {line}", highlight=False)


def _follow(run: SupervisedProcess, out: Path, timeout: float, progress: _Progress) -> None:
    """Report each round as it is recorded, until the run ends."""
    from fedprivacy.runs.folder import ROUNDS

    deadline = time.monotonic() + timeout
    reported = 0
    running = True
    while running:
        running = run.running  # asked before reading: what was written before the end is still reported
        lines = _complete_lines(out / ROUNDS)
        for line in lines[reported:]:
            progress.say(_round_line(json.loads(line)))
        reported = len(lines)
        if time.monotonic() > deadline:
            raise run.failure(f"was still going on after {timeout:g} seconds")
        time.sleep(0.2)


def _complete_lines(file: Path) -> list[str]:
    """The lines of a file that is being written; the last one may be half there and is left out."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


def _round_line(record: Mapping[str, Any]) -> str:
    metrics = ", ".join(f"{name} {value:.3f}" for name, value in record["metrics"].items() if value is not None)
    return f"round {record['round']}: {metrics}; largest epsilon {record['max_epsilon']:.3f}"
