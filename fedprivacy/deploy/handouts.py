"""The folders of a deployment, one for each party: keys, configuration, services, and a page of what to type.

A folder is what travels::

    deployment.toml   what all of this was made from
    README.md         for the operator: what goes to whom
    ca/               kept offline
    server/           for the server's host
    clients/NAME/     for client NAME
"""

from __future__ import annotations

import importlib.resources
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from fedprivacy._support.durable import PRIVATE, UNNAMED, name_durably
from fedprivacy._support.settings import ConfigError
from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy._support.sources import names_file
from fedprivacy.accounting import DEFAULT_FILTER
from fedprivacy.accounting.filters import FILTER_OF_MIXTURES
from fedprivacy.deploy.app_folder import render, task_from_here, write_app
from fedprivacy.deploy.description import OPERATOR, PARTY_FILE, SERVER, Description, Party, SetupError
from fedprivacy.deploy.federation import write_toml
from fedprivacy.deploy.keys import fingerprint, write_client_key, write_keys
from fedprivacy.deploy.services import (
    CLIENT_KEYS,
    LEDGER_IN_POSTGRESQL,
    PAGE_TOKEN,
    Platform,
    Service,
    backup_service,
    client_services,
    container_services,
    server_services,
    written_folders,
)
from fedprivacy.ledger.database import file_url
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.tasks.identity import BUILT_IN
from fedprivacy.tasks.loader import public_name

RECORD = "deployment.toml"
"""Name of the description from which the folders were made, kept beside them."""

SIGNING_KEY = "signing.key"
"""Name in the server's folder."""

_PORTS = ("superlink_port", "superexec_port", "supernode_port", "dashboard_port")


class Handouts(NamedTuple):
    """The written folders: the deployment's folder, the clients that are new in it, and whether it is new itself."""

    folder: Path
    clients: tuple[str, ...]
    new: bool


@dataclass(frozen=True, slots=True)
class _HostTask:
    """A task on every host: a built-in one by its name, or a file that lies in each party's folder."""

    source: str

    @property
    def file(self) -> Path | None:
        return Path(self.source.rpartition(":")[0]) if names_file(self.source) else None

    @property
    def name(self) -> str:
        """The task's name in a run, between hosts."""
        return public_name(self.source)

    def on_host(self, folder: str) -> str:
        """The task's name in a configuration on that host."""
        return f"{folder}/{self.name}" if self.file else self.source

    def pinned_name(self, folder: str) -> str:
        """The task's name in a client's list of allowed tasks: this file and no other."""
        digest = f"@sha256:{sha256(self.file.read_bytes()).hexdigest()}" if self.file else ""
        return self.on_host(folder) + digest


def write_handouts(description: Path, folder: Path, platform: Platform = Platform.SYSTEMD) -> Handouts:
    """Write every party's folder; of a deployment that is there, those of the clients that it has not got yet.

    Nothing that is there is changed, but for the record of what the folders were made from.

    Args:
        description: its file; a task's or an app's path in it begins at the file's own folder.
        folder: new or empty, or what this function wrote before.
        platform: runs the services on the hosts whose folders are written now.

    Raises:
        ConfigError: lists everything that is wrong with the description, or is not as it was.
        SetupError: the folder holds something else, or cannot be written.
        KeyFileError, SetupError, TaskError: see `write_keys` and `write_app`.
    """
    wanted = Description.read(description)
    try:
        if not (folder / RECORD).exists():
            return _write_new(wanted, description.parent, folder, platform)
        return _add_clients(wanted, folder, platform)
    except OSError as error:
        raise SetupError(f"'{folder}' cannot be written ({error}); name a folder that can be made.") from error


def _write_new(wanted: Description, base: Path, folder: Path, platform: Platform) -> Handouts:
    if folder.exists() and any(folder.iterdir()):
        raise SetupError(f"'{folder}' is not empty and holds no deployment; name a new folder.")
    own_app = base / wanted.app if wanted.app else None
    if own_app:
        task = _HostTask(task_from_here(own_app))
    else:
        task = _HostTask(str(base / wanted.task) if names_file(wanted.task) else wanted.task)
    run = {"clients": len(wanted.clients), "rounds": wanted.rounds, "epsilon": wanted.epsilon, "delta": wanted.delta}
    resolve({"task": task.source, **run})
    server, facts = _write_server(wanted, task, own_app, folder, platform)
    of_clients = [_write_client(wanted, server, task, folder, name, platform=platform) for name in wanted.clients]
    if platform is Platform.COMPOSE:
        parties = [_party(each, of_many=True) for each in (facts, *of_clients)]  # one file, for one machine
        _write_compose(folder, {**facts, **_common(facts), "parties": parties})
    _write_record(wanted, folder)
    return Handouts(folder, wanted.clients, new=True)


def _write_server(
    wanted: Description, task: _HostTask, own_app: Path | None, folder: Path, platform: Platform
) -> tuple[Party, dict[str, Any]]:
    """Write the folders of server and authority, and the operator's page; return the server and its facts."""
    own = folder / SERVER
    keys = write_keys(folder, [wanted.host], days=wanted.days)
    (own / CLIENT_KEYS).mkdir(mode=0o700)
    app = own_app.resolve().name if own_app else f"{(task.file or Path(task.source)).stem}-app"
    if own_app:
        shutil.copytree(own_app, own / app, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        write_app(own / app, task.source, clients=len(wanted.clients), bring=False)
    if task.file:
        shutil.copyfile(task.file, own / task.file.name)
    server = Party(
        party=SERVER,
        host=wanted.host,
        port=wanted.port,
        superlink_port=wanted.superlink_port,
        superexec_port=wanted.superexec_port,
        runtime_port=wanted.superlink_port,
        task=task.name,
        server_key=server_public_key(server_key(own / SIGNING_KEY)),
    )
    write_toml(own / PARTY_FILE, {"": server.facts()})
    facts = _facts(wanted, server, task, wanted.server_folder) | {
        "app": app,
        "expires": f"{keys.expires:%Y-%m-%d}",
        "client_folder": wanted.client_folder,
        "fingerprint": fingerprint(x509.load_pem_x509_certificate(keys.ca_certificate.read_bytes())),
    }
    if platform is not Platform.SYSTEMD:
        facts["ledger"] = LEDGER_IN_POSTGRESQL
    _write_services(own, facts, platform)
    _write_texts(own, {name: name for name in ("nginx.conf", "flower-config.toml", "run.toml")}, facts)
    _write_texts(folder, {"README.md": "operator.md"}, facts)
    return server, facts


def _add_clients(wanted: Description, folder: Path, platform: Platform) -> Handouts:
    recorded = Description.read(folder / RECORD)
    if changes := recorded.changes(wanted):
        raise ConfigError([f"{change}: '{folder}' is not changed; name a new folder." for change in changes])
    server = folder / SERVER
    known = Party.read(server)
    task = _HostTask(str(server / known.task) if names_file(known.task) else known.task)
    lacking = [path for path in (server / "ca.crt", task.file) if path and not path.exists()]
    if lacking:
        raise SetupError(f"'{lacking[0]}' is not there; copy it back from the server's host.")
    added = tuple(name for name in wanted.clients if name not in recorded.clients)  # a folder may have gone for good
    for name in added:
        _write_client(wanted, known, task, folder, name, platform=platform)
    everybody = tuple(dict.fromkeys((*recorded.clients, *wanted.clients)))
    _write_record(replace(recorded, clients=everybody), folder)
    return Handouts(folder, added, new=False)


def _write_client(
    wanted: Description, server: Party, task: _HostTask, folder: Path, name: str, *, platform: Platform
) -> dict[str, Any]:
    """Write a client's folder; return its facts."""
    own, public_key = folder / "clients" / name, folder / SERVER / CLIENT_KEYS / f"{name}.pub"
    if public_key.exists():
        raise SetupError(
            f"'{public_key}' is there already, and a name belongs to one key for ever; choose another name."
        )
    own.mkdir(parents=True, mode=0o700)
    place = wanted.client_path(wanted.client_folder, name)
    facts = _facts(wanted, server, task, place) | {
        "client": name,
        "records": wanted.client_path(wanted.records, name),
        "pinned_task": task.pinned_name(place),
        "usual_filter": DEFAULT_FILTER,
        "filter_of_mixtures": FILTER_OF_MIXTURES,
    }
    _write_services(own, facts, platform)
    _write_texts(own, {"node-config.toml": "node-config.toml"}, facts)
    write_toml(own / PARTY_FILE, {"": replace(server, party=name, runtime_port=wanted.supernode_port).facts()})
    shutil.copyfile(folder / SERVER / "ca.crt", own / "ca.crt")
    if task.file:
        shutil.copyfile(task.file, own / task.file.name)
    if wanted.client_keys == OPERATOR:
        shutil.copyfile(write_client_key(own, name).public_key, public_key)
    return facts


def _facts(wanted: Description, server: Party, task: _HostTask, folder: str) -> dict[str, Any]:
    """Facts that the templates of every party may ask for; `folder` is the party's on its host."""
    places = (folder, wanted.environment, wanted.records)
    return wanted.settings() | {
        "rounds": wanted.rounds,
        **{port: getattr(wanted, port) for port in _PORTS},
        "folder": folder,
        "at_home": any(place.startswith(("/home/", "/root/", "/run/user/")) for place in places),
        "address": f"[{wanted.host}]:{wanted.port}" if ":" in wanted.host else f"{wanted.host}:{wanted.port}",
        "party": server,
        "server_key": server.server_key,
        "task": task.name,
        "extra": "simulation" if task.source in BUILT_IN else "figures",  # a built-in task's public records
        "task_file": task.file.name if task.file else "",
        "host_task": task.on_host(folder),
        "ledger": file_url(f"{wanted.server_folder}/ledger/ledger.db"),
        "operator_keys": wanted.client_keys == OPERATOR,
    }


def _write_record(description: Description, folder: Path) -> None:
    unnamed = folder / f".{RECORD}{UNNAMED}"
    write_toml(unnamed, {"": description.settings()})
    name_durably(unnamed, folder / RECORD)


USER = 10001
"""Number of the account, and of its group, under which containers run."""

_LOCK = "requirements.txt"
_LOOPBACK, _ALL = "127.0.0.1", "0.0.0.0"
_NODE = "$(NODE)"
"""Stands for the SuperNode's address in a pod: looked up in no DNS, through which records could leave."""


class Pod(NamedTuple):
    """A pod of the chart: services that share a network, as on one host.

    Attributes:
        name: of the pod.
        services: its containers.
        lasting: true if it writes to the volume that lasts; what another one writes is gone with it.
        besides: true if another pod writes to that volume too, and it must run on the same node.
        job: true if it ends by itself.
        replicas: 1, or 0 if it is started by hand.
        port: that others connect to, if any.
        reaches: `server`, or the pod that it connects to, if any.
        reached_by: `clients`, or the pod that connects to it, if any.
    """

    name: str
    services: Sequence[Service]
    lasting: bool = False
    besides: bool = False
    job: bool = False
    replicas: int = 1
    port: int | None = None
    reaches: str = ""
    reached_by: str = ""


def _write_services(own: Path, facts: Mapping[str, Any], platform: Platform) -> None:
    """Write what a platform needs to run a party's services, and the page that says what to type.

    Args:
        own: the party's folder.
        facts: those that the templates of its files get.
        platform: that of its host.
    """
    services = _services(facts, platform)
    if platform is not Platform.HELM:  # which has volumes
        for name in written_folders(services):  # a service's sandbox cannot make what it writes to
            (own / name).mkdir(mode=0o700, parents=True)
    if platform is Platform.SYSTEMD:
        for service in services:
            _write_texts(own, {f"systemd/{service.unit}": service.unit}, {**facts, "service": service})
        _write_texts(own, {"README.md": "server.md" if _is_server(facts) else "client.md"}, facts)
        _copy_lock(facts, own)
        return
    composed = platform is Platform.COMPOSE
    more = {**facts, **_common(facts), "compose": composed}
    _write_texts(own, {"image/Dockerfile": "Dockerfile", "README.md": "containers.md"}, more)
    _copy_lock(facts, own / "image")
    if composed:
        _write_compose(own, {**more, "parties": [_party(facts)]})
    else:
        backup = Pod("backup", (backup_service(facts, services[0]),), lasting=True, besides=True, job=True)
        pods = {"pods": _pods(facts, services), "backup_pod": backup}
        _write_texts(own, {"Chart.yaml": "Chart.yaml", "values.yaml": "values.yaml"}, {**more, **pods})
        chart = importlib.resources.files("fedprivacy.deploy").joinpath("chart")
        (own / "templates").mkdir()
        for file in chart.joinpath("templates").iterdir():
            _write_file(own / "templates" / file.name, file.read_text("utf-8"))
        _write_file(own / ".helmignore", chart.joinpath("helmignore").read_text("utf-8"))


def _copy_lock(facts: Mapping[str, Any], folder: Path) -> None:
    """Copy the versions and hashes of what a party installs, as `make lock` resolved them."""
    locks = importlib.resources.files("fedprivacy.deploy").joinpath("requirements")
    _write_file(folder / _LOCK, locks.joinpath("server.txt" if _is_server(facts) else "node.txt").read_text("utf-8"))


def _write_compose(folder: Path, facts: Mapping[str, Any]) -> None:
    more = {**facts, "page_token": PAGE_TOKEN, "token": secrets.token_urlsafe()}
    _write_texts(folder, {"compose.yaml": "compose.yaml"}, more)
    _write_file(folder / ".env", render("handout", "env", more), PRIVATE)


def _common(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that the templates of Compose's files and of the chart may ask for besides."""
    return {"user": USER, "version": version("fedprivacy"), "is_server": _is_server(facts)}


def _services(facts: Mapping[str, Any], platform: Platform, prefix: str = "") -> tuple[Service, ...]:
    on_host, composed = platform is Platform.SYSTEMD, platform is Platform.COMPOSE
    if _is_server(facts):
        services = server_services(facts, page=_ALL if composed else "")
    else:
        node = _LOOPBACK if on_host else f"{prefix}client" if composed else _NODE
        services = client_services(facts, listens=_LOOPBACK if on_host else _ALL, node=node)
    return services if on_host else (*container_services(facts, services), *services)


def _pods(facts: Mapping[str, Any], services: Sequence[Service]) -> list[Pod]:
    """The server's services in one pod, as on one host; a client's each in its own, with its own network policy."""
    if _is_server(facts):
        return [Pod("server", services, lasting=True, port=facts["port"], reached_by="clients")]
    host, client, superexec = services
    return [
        Pod("host", [host], lasting=True, besides=True, replicas=0, reaches=SERVER),
        Pod("client", [client], port=client.listens, reaches=SERVER, reached_by=superexec.name),
        Pod(superexec.name, [superexec], lasting=True, reaches=client.name),
    ]


def _party(facts: Mapping[str, Any], *, of_many: bool = False) -> dict[str, Any]:
    """A party, as the template of a Compose file wants it."""
    name = SERVER if _is_server(facts) else f"clients/{facts['client']}"
    prefix = f"{facts['client']}-" if of_many and not _is_server(facts) else ""
    return {
        "is_server": _is_server(facts),
        "prefix": prefix,
        "base": f"./{name}" if of_many else ".",
        "folder": facts["folder"],
        "services": _services(facts, Platform.COMPOSE, prefix),
    }


def _is_server(facts: Mapping[str, Any]) -> bool:
    return "client" not in facts


def _write_texts(folder: Path, texts: Mapping[str, str], facts: Mapping[str, object]) -> None:
    """Write files into a party's folder, each by its name from the template of that name."""
    for name, template in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        _write_file(folder / name, render("handout", template, facts))


def _write_file(file: Path, text: str, mode: int = 0o666) -> None:
    """Write a file of a new folder; one that is there is an error."""
    with open(file, "x", opener=partial(os.open, mode=mode)) as new:
        new.write(text)
