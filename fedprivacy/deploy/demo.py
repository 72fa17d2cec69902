"""A rehearsal of a deployment on one host: three hospitals, TLS, authenticated SuperNodes, a few rounds."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from fedprivacy._support.logs import LogFormat
from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy.deploy.description import SetupError
from fedprivacy.deploy.federation import DeploymentError, LoopbackFederation, Scalar
from fedprivacy.deploy.processes import SupervisedProcess, Supervisor
from fedprivacy.flower.unpublished import COMPLETED
from fedprivacy.ledger.database import file_url
from fedprivacy.runs.records.folder import read_lines
from fedprivacy.runs.settings.configuration import LEDGER
from fedprivacy.tasks import ShardSource, digits

HOSPITALS = ("hospital-0", "hospital-1", "hospital-2")

RUN_TIMEOUT = 600.0
"""Seconds within which the run must end."""


class DemoDigits:
    """The digits task's records, split over three hospitals."""

    clients: tuple[str, ...] = HOSPITALS

    def __call__(self, client: str, folder: Path) -> None:
        """Write one client's part of the simulated split where a deployed client looks for it."""
        source = ShardSource(partition_id=self.clients.index(client), num_partitions=len(self.clients))
        digits.Digits().write_folder(source, folder)


class OwnFolders:
    """A folder that holds one folder of records for each client, named after it. Raises SetupError: there are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clients = tuple(sorted(child.name for child in folder.glob("*/")))
        if not self.clients:
            raise SetupError(f"data is '{folder}', which holds no folder; give each client's records a folder there.")

    def __call__(self, client: str, folder: Path) -> None:
        """Copy one client's records to where it will look for them: a rehearsal writes beside none that are real."""
        shutil.copytree(self._folder / client, folder, dirs_exist_ok=True)


def run_demo(
    directory: Path,
    app: Path,
    write_data: Callable[[str, Path], None],
    *,
    clients: Sequence[str],
    run_config: Mapping[str, Scalar] | None = None,
    node_config: Mapping[str, Scalar] | None = None,
    console: Console | None = None,
    form: LogFormat = LogFormat.TEXT,
) -> Path:
    """Deploy on the loopback interface, run the app once, stop everything.

    Args:
        directory: new folder for keys, data, logs, state and results.
        app: folder of the Flower app, with its `pyproject.toml`.
        write_data: writes a client's records: takes the client's name and its own, empty folder.
        clients: their names.
        run_config: added to `out`, `ledger`, `signing-key` and `clients`, which the rehearsal sets.
        node_config: added to `folder`, `client-id`, `key`, `server-key` and, where the run names one, `task`, which the
            rehearsal sets for each client; for example each client's own budget.
        console: shows progress; None: no output.
        form: form of the log files.

    Returns:
        The folder of the run's results (`run.db`, `report.html`, ...) and of the server's ledger.

    Raises:
        DeploymentError: the run failed; the message ends with the ServerApp's log.
        ProcessError: a process did not start, did not connect, or did not end.
        KeyFileError: `directory` holds keys already, or a client's name is not usable.
    """
    directory, started = directory.resolve(), time.monotonic()
    out, signing_key = directory / "results", directory / "superlink" / "signing.key"

    def say(line: str) -> None:
        if console:
            console.print(f"[dim]{time.monotonic() - started:6.1f} s[/]  {line}", highlight=False)

    with _told_where(directory), Supervisor(directory / "logs") as supervisor:
        federation = LoopbackFederation(supervisor, directory, clients, form)
        keys = federation.keys.clients
        say(f"keys: a certificate authority, a server certificate, {len(clients)} client keys")
        federation.start_superlink()
        task = {"task": run_config["task"]} if run_config and "task" in run_config else {}
        common = {"server-key": server_public_key(server_key(signing_key)), **task, **(node_config or {})}
        for name in clients:
            folder = directory / "data" / name
            folder.mkdir(parents=True)
            write_data(name, folder)
        federation.wait_for_superlink()
        say(f"SuperLink on {federation.address}: TLS, SuperNode authentication")
        federation.register()
        say(f"registered {', '.join(clients)} by their public keys")
        nodes = []
        for name in clients:
            own = {"folder": str(directory / "data" / name), "client-id": name, "key": str(keys[name].private_key)}
            nodes.append(federation.start_supernode(keys[name], own | common))
        federation.wait_until_online(nodes)
        say(f"{len(nodes)} SuperNodes online, each with its own data folder")
        out.mkdir(exist_ok=True)
        files = {"out": str(out), "ledger": file_url(out / LEDGER), "signing-key": str(signing_key)}
        run = federation.start_run(app.resolve(), {**(run_config or {}), "clients": len(clients), **files})
        _follow(run, out, say)
        status = federation.run_status()
        if status != COMPLETED:
            raise DeploymentError(f"The run ended as {status}. The end of {run.log}:\n{run.tail(40)}")
        say(f"run {status}")
    say("every process stopped")
    return out


@contextmanager
def _told_where(directory: Path) -> Iterator[None]:
    """Say of a rehearsal that somebody ends what is left of it."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"Every process stopped. What they wrote is in {directory}; it can be deleted.")
        raise


def _follow(run: SupervisedProcess, out: Path, say: Callable[[str], None]) -> None:
    """Report each round as it is recorded, until the run ends."""
    deadline = time.monotonic() + RUN_TIMEOUT
    reported = 0
    running = True
    while running:
        running = run.running  # asked before reading: what was written before the end is still reported
        lines = read_lines(out)[1:]  # the first is the state before the first round
        for record in map(json.loads, lines[reported:]):
            parts = [f"{name} {value:.3f}" for name, value in record["metrics"].items() if value is not None]
            say(f"round {record['round']}: {', '.join([*parts, 'largest epsilon'])} {record['max_epsilon']:.3f}")
        reported = len(lines)
        if time.monotonic() > deadline:
            raise run.failure(f"was still going on after {RUN_TIMEOUT:g} seconds")
        time.sleep(0.2)
