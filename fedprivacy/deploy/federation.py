"""A complete Flower federation on the loopback interface: real processes, TLS, authenticated SuperNodes.

It runs the same programs with the same options as a deployment on real hosts (docs/how-to/deploy.md); only the host is
one. Nothing listens on another interface than 127.0.0.1, and all state lies in one folder::

    keys/             see `fedprivacy.deploy.keys`
    superlink/        FLWR_HOME of the server's side, and its database
    supernodes/NAME/  FLWR_HOME of client NAME
    operator/         FLWR_HOME of the operator's `flwr` commands

Every process has a FLWR_HOME of its own, as on real hosts: SuperNodes that share one race to unpack the app there.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedprivacy._support.logs import LogFormat, LogSettings
from fedprivacy.deploy.keys import ClientKeys, write_keys
from fedprivacy.deploy.processes import SupervisedProcess, Supervisor
from fedprivacy.flower.unpublished import ADMITTED, POLL_INTERVAL

HOST = "127.0.0.1"
"""The only interface that a rehearsal uses."""

Scalar = bool | int | float | str
"""A value of Flower's run and node configurations."""

CONNECTION = "deployment"
"""Name of the connection in the operator's Flower configuration."""

PATIENCE = 300.0
"""Seconds after which a process that is not ready, or a short command that is not done, hangs."""

PORTS = range(20_000, 30_000)
"""Ports below those that systems give to outgoing connections: such a one could take a free port, or reach itself."""


class DeploymentError(RuntimeError):
    """The federation did not do what it was asked to; the message says which part, and where its log is."""


@dataclass(frozen=True, slots=True)
class SuperNode:
    """A running client: its name, and its SuperNode."""

    client: str
    process: SupervisedProcess

    def connected(self) -> bool:
        """True once the SuperLink has admitted it."""
        return ADMITTED in self.process.output()


class LoopbackFederation:
    """A SuperLink and its SuperNodes on this host.

    Args:
        supervisor: owns the processes.
        directory: folder for keys and state; must not hold a federation yet.
        clients: names of the clients that get a key.
        form: form of the log files of SuperLink, SuperExec, SuperNodes and run.

    Raises:
        KeyFileError: a name is not usable, or the folder holds keys already.
    """

    def __init__(
        self, supervisor: Supervisor, directory: Path, clients: Sequence[str], form: LogFormat = LogFormat.TEXT
    ) -> None:
        self._supervisor = supervisor
        self._events = LogSettings(form)  # from info on: Flower says so that a SuperNode is connected
        self._directory = directory.resolve()
        self._port, self._superexec_port, *ports = free_ports(2 + len(clients))
        self._runtime_ports = dict(zip(clients, ports, strict=True))
        self._node_ids: dict[str, str] = {}
        self._superlink: SupervisedProcess
        self.keys = write_keys(self._directory / "keys", clients=clients)

    @property
    def address(self) -> str:
        """HOST:PORT of the SuperLink."""
        return f"{HOST}:{self._port}"

    def start_superlink(self) -> None:
        """Start the SuperLink, and the SuperExec beside it, which starts runs; they go on in the background."""
        command: list[str | Path] = [
            *(sys.executable, "-m", "fedprivacy.deploy.superlink", "--host", HOST, "--port", str(self._port)),
            *("--ssl-ca-certfile", self.keys.ca_certificate),
            *("--ssl-certfile", self.keys.server_certificate),
            *("--ssl-keyfile", self.keys.server_key),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", self._directory / "superlink" / "state.db", "--isolation", "process"),
        ]
        self._superlink = self._start("superlink", command, home="superlink", events=self._events)
        superexec: list[str | Path] = [
            *(program("flower-superexec"), "--runtime-api-address", self.address),
            *("--root-certificates", self.keys.ca_certificate),
            *("--health-server-address", f"{HOST}:{self._superexec_port}"),
        ]
        self._start("superexec", superexec, home="superlink", events=self._events)

    def wait_for_superlink(self) -> None:
        """Wait until the SuperLink answers over TLS with a certificate of our CA.

        Raises:
            ProcessError: it ended, or does not answer in time.
        """
        trust = ssl.create_default_context(cafile=str(self.keys.ca_certificate))
        self._supervisor.wait_until_ready(self._superlink, lambda: is_healthy(self.address, trust), PATIENCE)
        deployment = {"address": self.address, "root-certificates": str(self.keys.ca_certificate)}
        write_toml(
            self._home("operator") / "config.toml",
            {"superlink": {"default": CONNECTION}, f"superlink.{CONNECTION}": {**deployment, "insecure": False}},
        )

    def register(self) -> None:
        """Have the SuperLink admit every client's public key, under the client's name.

        Raises:
            DeploymentError: it refuses one.
        """
        commands = {
            name: self._start_flwr(
                f"register-{name}", "supernode", "register", client.public_key, CONNECTION, "--name", name
            )
            for name, client in self.keys.clients.items()
        }
        self._node_ids = {name: str(self._reply(command)["node-id"]) for name, command in commands.items()}

    def start_supernode(self, client: ClientKeys, node_config: Mapping[str, Scalar]) -> SuperNode:
        """Start a client's SuperNode; it goes on to connect in the background.

        Args:
            client: its keys.
            node_config: what its ClientApp finds in `context.node_config`.
        """
        port = self._runtime_ports.get(client.name) or free_ports(1)[0]
        home = f"supernodes/{client.name}"
        config = self._home(home) / "node-config.toml"
        write_toml(config, {"": node_config})
        command: list[str | Path] = [
            *(sys.executable, "-m", "fedprivacy.deploy.supernode", "--superlink", self.address),
            *("--root-certificates", self.keys.ca_certificate),
            *("--auth-supernode-private-key", client.private_key),
            *("--node-config", config),
            *("--host", HOST, "--port", str(port)),
        ]
        return SuperNode(client.name, self._start(f"supernode-{client.name}", command, home=home, events=self._events))

    def wait_until_online(self, nodes: Sequence[SuperNode]) -> None:
        """Wait until every SuperNode is connected, and the SuperLink says so too.

        Raises:
            ProcessError: a SuperNode ended, or did not connect in time.
            DeploymentError: the SuperLink does not count it as online.
        """
        for node in nodes:
            self._supervisor.wait_until_ready(node.process, node.connected, PATIENCE)
        listed = self._flwr("supernodes", "supernode", "list", CONNECTION)["nodes"]
        online = {node["node-id"] for node in listed if node["status"] == "online"}
        lost = [node.client for node in nodes if self._node_ids[node.client] not in online]
        if lost:
            logs = self._supervisor.logs
            raise DeploymentError(f"{', '.join(lost)} connected and went offline again; see the logs in {logs}.")

    def start_run(self, app: Path, run_config: Mapping[str, Scalar]) -> SupervisedProcess:
        """Submit the app in folder `app`; the returned process streams the ServerApp's log and ends with the run."""
        config = self._home("operator") / "run-config.toml"
        write_toml(config, {"": run_config})
        return self._start_flwr("run", "run", app, CONNECTION, "--stream", "--run-config", config, as_json=False)

    def run_status(self) -> str:
        """Flower's word for how the latest run stands. A log stream that ends with 0 may have followed a failed run.

        Raises:
            DeploymentError: no run was accepted.
        """
        runs = self._flwr("runs", "ls", CONNECTION)["runs"]
        if not runs:
            raise DeploymentError(f"The SuperLink accepted no run; {self._supervisor.logs / 'run.log'} says why.")
        return str(max(runs, key=lambda run: str(run["pending-at"]))["status"])

    def _flwr(self, name: str, *arguments: str | Path) -> Any:
        return self._reply(self._start_flwr(name, *arguments))

    def _start_flwr(self, name: str, *arguments: str | Path, as_json: bool = True) -> SupervisedProcess:
        output = ["--format", "json"] if as_json else []
        events = None if as_json else self._events
        return self._start(name, [program("flwr"), *arguments, *output], home="operator", events=events)

    def _reply(self, command: SupervisedProcess) -> Any:
        """The JSON object that a `flwr` command printed."""
        code = self._supervisor.wait(command, PATIENCE)
        try:
            return reply_in(command.output(), command.name)
        except ValueError as error:
            raise command.failure(f"ended with exit code {code} and printed no JSON") from error

    def _start(
        self, name: str, command: Sequence[str | Path], *, home: str, events: LogSettings | None = None
    ) -> SupervisedProcess:
        folder = self._home(home)
        environment = flower_environment(folder)
        return self._supervisor.start(name, command, environment=environment, directory=folder, events=events)

    def _home(self, name: str) -> Path:
        folder = self._directory / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def reply_in(printed: str, name: str) -> Any:
    """Return the JSON object in what a `flwr` command printed, warnings around it.

    Raises:
        ValueError: there is none.
        DeploymentError: it says, under the command's name, that the command failed.
    """
    reply, _ = json.JSONDecoder().raw_decode(printed, max(printed.find("{"), 0))
    if not reply.get("success"):
        raise DeploymentError(f"{name}: {reply.get('error-message', printed)}")
    return reply


def is_healthy(address: str, trust: ssl.SSLContext) -> bool:
    """True if a SuperLink answers at HOST:PORT, over TLS with a certificate that is trusted."""
    try:
        with urllib.request.urlopen(f"https://{address}/health", timeout=2.0, context=trust) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def flower_environment(home: Path) -> dict[str, str]:
    """Environment of a Flower process: its own state, this Python's programs, nothing sent out, nothing installed."""
    return {
        **quiet_environment(),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        POLL_INTERVAL: "0.25",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # several clients share this host
    }


def quiet_environment() -> dict[str, str]:
    """Environment in which every program of Flower's is started: this Python's programs, nothing sent out."""
    return {
        "PATH": _search_path(),  # Flower starts its own programs by bare name
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def write_toml(path: Path, tables: Mapping[str, Mapping[str, Scalar | list[str]]]) -> None:
    """Write tables of scalars and lists of texts as TOML; the table named "" is the top level and comes first."""
    parts = [(f"[{name}]\n" if name else "") + tomli_w.dumps(table) for name, table in tables.items()]
    path.write_text("".join(parts), encoding="utf-8")


def _search_path() -> str:
    """This Python's own programs first, activated or not."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def program(name: str) -> Path:
    """A program of this Python environment.

    Raises:
        FileNotFoundError: it is not installed.
    """
    found = shutil.which(name, path=_search_path())
    if found is None:
        raise FileNotFoundError(f"{name} is not installed beside {sys.executable}; install fedprivacy there with pip.")
    return Path(found)


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on now."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            port = secrets.choice(PORTS)  # no seed: processes that share one would all take the same
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind((HOST, port))
                ports.append(port)
    return ports
