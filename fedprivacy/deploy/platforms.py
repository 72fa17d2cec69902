"""The files from which systemd, Compose or Helm runs the services of a party's host."""

from __future__ import annotations

import importlib.resources
import secrets
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedprivacy._support.durable import PRIVATE
from fedprivacy.deploy.party import SERVER
from fedprivacy.deploy.services import (
    PAGE_TOKEN,
    Platform,
    Service,
    backup_service,
    client_services,
    container_services,
    server_services,
    written,
)
from fedprivacy.deploy.templates import write_texts

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


def write_services(own: Path, facts: Mapping[str, Any], platform: Platform) -> None:
    """Write what a platform needs to run a party's services, and the page that says what to type.

    Args:
        own: the party's folder.
        facts: those that the templates of its files get.
        platform: that of its host.
    """
    services = _services(facts, platform)
    if platform is not Platform.HELM:  # which has volumes
        for name in written(services):  # a service's sandbox cannot make what it writes to
            (own / name).mkdir(mode=0o700, parents=True)
    if platform is Platform.SYSTEMD:
        for service in services:
            write_texts(own, {f"systemd/{service.unit}": service.unit}, {**facts, "service": service})
        write_texts(own, {"README.md": "server.md" if _is_server(facts) else "client.md"}, facts)
        _copy_lock(facts, own)
        return
    composed = platform is Platform.COMPOSE
    more = {**facts, **_common(facts), "compose": composed}
    write_texts(own, {"image/Dockerfile": "Dockerfile", "README.md": "containers.md"}, more)
    _copy_lock(facts, own / "image")
    if composed:
        _write_compose(own, {**more, "parties": [_party(facts)]})
    else:
        backup = Pod("backup", (backup_service(facts, services[0]),), lasting=True, besides=True, job=True)
        pods = {"pods": _pods(facts, services), "backup_pod": backup}
        write_texts(own, {"Chart.yaml": "Chart.yaml", "values.yaml": "values.yaml"}, {**more, **pods})
        _copy_chart(own)


def _copy_lock(facts: Mapping[str, Any], folder: Path) -> None:
    """Copy the versions and hashes of what a party installs, as `make lock` resolved them."""
    locks = importlib.resources.files("fedprivacy.deploy").joinpath("requirements")
    (folder / _LOCK).write_text(locks.joinpath("server.txt" if _is_server(facts) else "node.txt").read_text("utf-8"))


def write_trial(folder: Path, parties: Sequence[Mapping[str, Any]]) -> None:
    """Write one Compose file for a deployment on one machine, from the facts of each party, the server's first."""
    described = [_party(facts, of_many=True) for facts in parties]
    more = {**parties[0], **_common(parties[0]), "parties": described}
    _write_compose(folder, more)


def _write_compose(folder: Path, facts: Mapping[str, Any]) -> None:
    (folder / ".env").touch(mode=PRIVATE)
    token = {"page_token": PAGE_TOKEN, "token": secrets.token_urlsafe()}
    write_texts(folder, {"compose.yaml": "compose.yaml", ".env": "env"}, {**facts, **token})


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


def _copy_chart(own: Path) -> None:
    """Copy the chart's templates, which are the same for every party: its values say what a party runs."""
    chart = importlib.resources.files("fedprivacy.deploy").joinpath("chart")
    (own / "templates").mkdir()
    for file in chart.joinpath("templates").iterdir():
        (own / "templates" / file.name).write_text(file.read_text("utf-8"))
    (own / ".helmignore").write_text(chart.joinpath("helmignore").read_text("utf-8"))
