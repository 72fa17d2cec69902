"""The services of a deployment, each described once: units, Compose files and the chart are written from it.

A server's services speak with each other over its host's loopback interface. A client's two services do so where they
share a host; as containers they have a network of their own between them.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

HOST_MEMORY = 16_384
"""MiB of the host that containers' limits are a part of, where a service's limit is a part of its host's memory."""

SOCKETS = "/run/postgresql"
"""Folder of PostgreSQL's socket, in every container that uses it: a socket's path must be short."""

PAGE_TOKEN = "DASHBOARD_TOKEN"
"""Name in Compose's `.env` of the token that whoever opens the dashboard types."""

DATABASE = "fedprivacy"
"""Name of the ledger's database and of its user. Who can open the socket is let in: its folder is the lock."""

LEDGER_IN_POSTGRESQL = f"postgresql+psycopg://{DATABASE}@/{DATABASE}?host={SOCKETS}"
"""URL of the ledger of a server whose services are containers."""


CLIENT_KEYS = "clients"
"""Folder of the clients' public keys, in the server's."""

_FLOWER_CONFIG, _CLUSTER, _SOCKET = "flower-config.toml", "postgresql/data", "postgresql/socket"

_WAITS = "import signal; end = {signal.SIGTERM}; signal.pthread_sigmask(signal.SIG_BLOCK, end); signal.sigwait(end)"

_ELSEWHERE = {_SOCKET: SOCKETS, _FLOWER_CONFIG: "{}/.flwr/config.toml"}
"""Paths in a container of what is not under its own name in the party's folder there."""


class Platform(enum.StrEnum):
    """The program that runs the services on a party's host."""

    SYSTEMD = "systemd"
    COMPOSE = "compose"
    HELM = "helm"


class Image(enum.StrEnum):
    """The image that a service's container is made of: fedprivacy's own, or that of another program."""

    OWN = "fedprivacy"
    NGINX = "nginx"
    POSTGRESQL = "postgresql"


class Network(enum.StrEnum):
    """The network of a service, beside the other services of its party.

    Attributes:
        NONE: no other host.
        SERVER: connects to the server.
        CLIENTS: the clients connect to it.
    """

    NONE = "this host alone"
    SERVER = "the server, whose address the firewall knows"
    CLIENTS = "the clients, whose addresses the firewall knows"


class Mount(NamedTuple):
    """A file or folder of the host in a container; `source` is in the party's folder, unless it is absolute."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that runs on a party's host for as long as the deployment does.

    Attributes:
        name: also that of its unit, fedprivacy-NAME.service.
        command: program and arguments, in lines that together are one command; none: the image's own program.
        arguments: of the image's own program.
        environment: in lines of NAME=VALUE, separated by spaces.
        image: of its container.
        reads: files and folders of the party's folder that it reads.
        secrets: files of the party's folder that it reads, and nobody else may.
        records: absolute path of the records that it reads, if any.
        writes: folders of the party's folder that it writes to; everything else is read-only.
        listens: port.
        network: whom it speaks with.
        memory: limit, as systemd writes it: a part of the host's, or a size.
        tasks: largest number of processes and threads.
        rest: seconds before it is started again.
        after: service of its party that must be there before it, and with which it is started again.
        probe: program and arguments that end with 0 while it is well, in its container.
        on_demand: true if it is started by hand only.
    """

    name: str
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    image: Image = Image.OWN
    reads: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    records: str = ""
    writes: tuple[str, ...] = ()
    listens: int | None = None
    network: Network = Network.NONE
    memory: str
    tasks: int
    rest: int = 10
    after: str = ""
    probe: tuple[str, ...] = ()
    on_demand: bool = False

    @property
    def unit(self) -> str:
        """Name of its unit."""
        return f"fedprivacy-{self.name}.service"

    @property
    def words(self) -> list[str]:
        """Program and arguments."""
        return shlex.split(" ".join(self.command))

    @property
    def variables(self) -> dict[str, str]:
        """The environment, by name."""
        pairs = (pair.partition("=") for line in self.environment for pair in line.split())
        return {name: value for name, _, value in pairs}

    def mounts(self, folder: str) -> list[Mount]:
        """All that its container sees of the host, beside its image; `folder` is the party's, in the container."""
        shown = [
            Mount(name, _ELSEWHERE.get(name, "{}/{}").format(folder, name)) for name in (*self.reads, *self.secrets)
        ]
        return [
            *(Mount(name, _ELSEWHERE.get(name, "{}/{}").format(folder, name), writable=True) for name in self.writes),
            *shown,
            *([Mount(self.records, self.records)] if self.records else []),
        ]

    @property
    def mebibytes(self) -> int:
        """Memory limit of its container in MiB; of a part of the memory, that of a host with `HOST_MEMORY`."""
        number = int(self.memory[:-1])
        return HOST_MEMORY * number // 100 if self.memory.endswith("%") else number


def server_services(facts: Mapping[str, Any], *, page: str = "") -> tuple[Service, ...]:
    """The services of the server's host.

    Args:
        facts: those that the templates of its files get.
        page: address on which the dashboard waits for browsers; this host's own where it is left out.
    """
    folder, programs = facts["folder"], f"{facts['environment']}/bin"
    superlink, superexec, dashboard = (facts[f"{name}_port"] for name in ("superlink", "superexec", "dashboard"))
    task = (facts["task_file"],) * bool(facts["task_file"])
    home, localhost = _flower_home(folder), f"https://localhost:{facts['port']}/"
    logged = f"{programs}/fedprivacy deploy logged --"
    database = (_SOCKET,) * (facts["ledger"] == LEDGER_IN_POSTGRESQL)
    return (
        Service(
            name="superlink",
            command=(
                f"{logged} {programs}/python -m fedprivacy.deploy.superlink",
                f"--host 127.0.0.1 --port {superlink}",
                f"--ssl-ca-certfile {folder}/ca.crt --ssl-certfile {folder}/server.crt "
                f"--ssl-keyfile {folder}/server.key",
                f"--enable-supernode-auth --database {folder}/superlink/superlink.db --isolation process",
                "--disable-runtime-dependency-installation",
            ),
            environment=(home,),
            reads=("ca.crt", "server.crt"),
            secrets=("server.key",),
            writes=("superlink", ".flwr"),
            listens=superlink,
            memory="50%",
            tasks=512,
            probe=_probe(programs, f"https://127.0.0.1:{superlink}/health", f"{folder}/ca.crt"),
        ),
        Service(
            name="superexec",
            command=(
                f"{logged} {programs}/flower-superexec",
                f"--runtime-api-address 127.0.0.1:{superlink}",
                f"--root-certificates {folder}/ca.crt --health-server-address 127.0.0.1:{superexec}",
            ),
            environment=(home, _search_path(programs)),
            reads=("ca.crt", *task),
            secrets=("signing.key",),
            writes=("ledger", "runs", ".flwr", *database),
            listens=superexec,
            memory="75%",
            tasks=4096,
            after="superlink",
            probe=_probe(programs, f"tcp://127.0.0.1:{superexec}"),
        ),
        Service(
            name="proxy",
            command=(f"/usr/sbin/nginx -c {folder}/nginx.conf",),
            image=Image.NGINX,
            reads=("nginx.conf", "ca.crt", "server.crt"),
            secrets=("server.key",),
            writes=("nginx",),
            listens=facts["port"],
            network=Network.CLIENTS,
            memory="512M",
            tasks=16,
            probe=("curl", "--silent", "--output", "/dev/null", "--cacert", f"{folder}/ca.crt", localhost),
        ),
        Service(
            name="dashboard",
            command=(
                f"{programs}/fedprivacy dashboard --store {facts['ledger']} --port {dashboard}",
                *([f"--host {page}"] if page else []),
            ),
            environment=(f"FEDPRIVACY_DASHBOARD_TOKEN=${{{PAGE_TOKEN}:?}}",) * bool(page),
            writes=("ledger", *database),
            listens=dashboard,
            memory="25%",
            tasks=512,
            rest=30,
            probe=_probe(programs, f"http://127.0.0.1:{dashboard}/healthz"),
        ),
    )


def client_services(facts: Mapping[str, Any], *, listens: str, node: str) -> tuple[Service, ...]:
    """The services of a client's host.

    Args:
        facts: those that the templates of its files get.
        listens: address on which the SuperNode waits for its SuperExec.
        node: host under which the SuperExec finds it.
    """
    folder, programs, port = facts["folder"], f"{facts['environment']}/bin", facts["supernode_port"]
    home, logged = _flower_home(folder), f"{programs}/fedprivacy deploy logged --"
    task = (facts["task_file"],) * bool(facts["task_file"])
    return (
        Service(
            name="client",
            command=(
                f"{logged} {programs}/python -m fedprivacy.deploy.supernode",
                f"--superlink {facts['address']} --root-certificates {folder}/ca.crt",
                f"--auth-supernode-private-key {folder}/{facts['client']}.key --node-config {folder}/node-config.toml",
                f"--host {listens} --port {port} --isolation process",
            ),
            environment=(home,),
            reads=("ca.crt", "node-config.toml"),
            secrets=(f"{facts['client']}.key",),
            writes=(".flwr",),
            listens=port,
            network=Network.SERVER,
            memory="50%",
            tasks=512,
            rest=70,  # one that was killed is refused until the server has noticed, for about a minute
            probe=_probe(programs, f"tcp://127.0.0.1:{port}"),
        ),
        Service(
            name="client-superexec",
            command=(f"{logged} {programs}/flower-superexec", f"--runtime-api-address {node}:{port} --insecure"),
            environment=(home, _search_path(programs)),
            reads=task,
            secrets=(f"{facts['client']}.key",),
            records=facts["records"],
            writes=("guard", ".flwr"),
            memory="75%",
            tasks=4096,
            after="client",
        ),
    )


def container_services(facts: Mapping[str, Any], services: tuple[Service, ...]) -> tuple[Service, ...]:
    """The services that a party has besides those of its units where all are containers.

    `host` stands for the host itself: commands are typed in it, and it holds the network that the server's share.
    """
    programs, folder, is_server = f"{facts['environment']}/bin", facts["folder"], "client" not in facts
    server_reads = ("run.toml", CLIENT_KEYS, facts.get("app", ""), _FLOWER_CONFIG)
    host = Service(
        name="host",
        command=(f"{programs}/python -c '{_WAITS}'",),
        environment=(_flower_home(folder), _search_path(programs)),
        reads=(*_together(service.reads for service in services), "party.toml", *(server_reads if is_server else ())),
        secrets=_together(service.secrets for service in services),
        records="" if is_server else facts["records"],
        writes=written_folders(services),
        network=Network.NONE if is_server else Network.SERVER,
        memory="25%",
        tasks=512,
        on_demand=not is_server,
    )
    database = Service(
        name="postgresql",
        image=Image.POSTGRESQL,
        arguments=("postgres", "-c", "listen_addresses="),
        environment=(
            f"POSTGRES_USER={DATABASE} POSTGRES_DB={DATABASE} POSTGRES_HOST_AUTH_METHOD=trust",
            f"PGDATA={folder}/{_CLUSTER} POSTGRES_INITDB_ARGS=--encoding=UTF8",
        ),
        writes=(_CLUSTER, _SOCKET),
        memory="25%",
        tasks=512,
        probe=("pg_isready", "--quiet", "--host", SOCKETS, "--username", DATABASE),
    )
    return (host, database) if is_server else (host,)


def backup_service(facts: Mapping[str, Any], host: Service) -> Service:
    """The job that backs up the folder of a party, of which it sees what `host` sees, but for the records."""
    program, out = f"{facts['environment']}/bin/fedprivacy", "/backup/$(POD).tar"
    command = f"{program} deploy backup {facts['folder']} --out {out}"
    return replace(host, name="backup", command=(command,), records="", network=Network.NONE)


def written_folders(services: Iterable[Service]) -> tuple[str, ...]:
    return _together(service.writes for service in services)


def _together(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


def _probe(programs: str, *asked: str) -> tuple[str, ...]:
    return (f"{programs}/python", "-m", "fedprivacy.deploy.probe", *asked)


def _flower_home(folder: str) -> str:
    return f"FLWR_HOME={folder}/.flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1"


def _search_path(programs: str) -> str:
    """Flower starts its helpers by bare name."""
    return f"PATH={programs}:/usr/bin:/bin"
