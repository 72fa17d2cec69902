"""The descriptions of a deployment: the operator's of all of it, and in the folder of each party its own.

Releases that a deployment may have are here, too: of fedprivacy, less those that SECURITY.md names, and of Flower.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, Self

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from fedprivacy._support.settings import ConfigError, fields_of, not_allowed, parse, setting
from fedprivacy.deploy.keys import MAX_DAYS, KeyFileError, check_client_names, subject_name
from fedprivacy.tasks.identity import BUILT_IN, DEFAULT_TASK

SOUND_SINCE = (0, 2)
"""First series of releases that may be deployed: what is earlier can be broken, see SECURITY.md."""


def is_sound(version: str) -> bool:
    """Return whether a release may be deployed, by its first two numbers; what is no version may not."""
    series = re.match(r"(\d+)\.(\d+)", version)
    return series is not None and (int(series[1]), int(series[2])) >= SOUND_SINCE


def flower_window() -> str:
    """Return the releases of Flower that this fedprivacy works with, as its package requires them: ">=1.41,<1.43"."""
    return ",".join(sorted(map(str, _flower()), reverse=True))


def works_with_flower(version: str) -> bool:
    """Return whether this fedprivacy works with a release of Flower; what is no version it does not."""
    try:
        return _flower().contains(version)
    except InvalidVersion:
        return False


def _flower() -> SpecifierSet:
    required = map(Requirement, requires("fedprivacy") or ())
    return next(one.specifier for one in required if one.name == "flwr" and one.marker is None)


PARTY_FILE = "party.toml"
"""Name of the file in a folder that describes its party."""

SERVER = "server"
"""The party that is no client."""


class SetupError(ValueError):
    """A folder or file of a deployment that is not what it must be, or cannot be made there, with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Facts against which the check of a host compares it.

    Attributes:
        party: `SERVER`, or the client's name.
        host: the server's DNS name or IP address.
        port: of the proxy.
        superlink_port: of the SuperLink, on the server's host.
        superexec_port: on which the SuperExec, which starts runs on the server's host, says that it is well.
        runtime_port: on which this host's own Flower process answers its own host: the SuperLink's, or the SuperNode's.
        task: what a run calls the task.
        server_key: the public half of the key that signs grants, in hexadecimal.
        fedprivacy, flwr, python: the versions that the deployment was made for.
    """

    party: str
    host: str
    port: int
    superlink_port: int
    superexec_port: int
    runtime_port: int
    task: str
    server_key: str
    fedprivacy: str = dataclasses.field(default_factory=lambda: version("fedprivacy"))
    flwr: str = dataclasses.field(default_factory=lambda: version("flwr"))
    python: str = dataclasses.field(default_factory=platform.python_version)

    @property
    def is_server(self) -> bool:
        return self.party == SERVER

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the party from its folder. Raises SetupError: it was made for no party."""
        try:
            given = tomllib.loads((folder / PARTY_FILE).read_text())
            party = cls(**{key.replace("-", "_"): value for key, value in given.items()})
            fields = dataclasses.fields(party)
            if not all(type(getattr(party, field.name)).__name__ == field.type for field in fields):
                raise TypeError("a value of another type than it was written with")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError) as error:
            raise SetupError(
                f"'{folder}' holds no part of a deployment ({PARTY_FILE}: {error}); name the folder that 'fedprivacy "
                "deploy init' made for this host."
            ) from error
        return party

    def facts(self) -> dict[str, str | int]:
        """The party's fields, as its file has them."""
        return {key.replace("_", "-"): value for key, value in dataclasses.asdict(self).items()}


CLIENT = "{client}"
"""Stands for a client's name in a path on the clients' hosts."""

OPERATOR = "operator"
"""Value of `client-keys` under which the operator makes the clients' keys."""

_PORTS = (1, 65535)

EXAMPLE = f"""\
# A deployment: `fedprivacy deploy init deployment.toml --out deployment` writes a folder for each party from it.

host = "fl.example.org"     # the server, as the clients reach it: a DNS name or an IP address
port = 8443                 # the only port that is open to anybody
clients = ["hospital-0", "hospital-1", "hospital-2"]  # a name is for ever: what its records lose is counted under it

task = "digits"             # {", ".join(BUILT_IN)}, or path/to/file.py:Name of your own
# app = "patients-app"      # instead of a task: a Flower app that `fedprivacy deploy app` wrote, and you changed
epsilon = 3.0               # of each client, over all runs; each may lower its own in its node-config.toml
delta = 1e-5                # well below 1 / number of records
# rounds = 20               # left open: the task's own

# client-keys = "operator"  # you make them; left open: each client its own, and the private half never travels

# Where things lie on the hosts, with what holds if it is left out. {CLIENT} stands for a client's name.
# server-folder = "/srv/fedprivacy"
# client-folder = "/srv/fedprivacy"
# records = "/srv/fedprivacy/records"        # where the task finds a client's records
# environment = "/srv/fedprivacy/.venv"      # the Python environment that has fedprivacy, on every host
# account = "fedprivacy"                     # under which everything runs, on every host
# superlink-port = 8000                      # these four answer their own host alone
# superexec-port = 8001
# supernode-port = 9094
# dashboard-port = 8050
# days = 365                                 # validity of the certificates
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A deployment, checked; `EXAMPLE` says what each setting is for. Paths are those on the hosts."""

    clients: tuple[str, ...]
    host: str = setting("Under which clients reach the server.")
    port: int = setting("Of the proxy.", 8443, bounds=_PORTS)
    task: str = setting("A built-in task, or path/to/file.py:Name.", "")
    app: str = setting("Folder of a Flower app, instead of a task.", "")
    epsilon: float = setting("Of each client's budget.", bounds=(5e-324, 1e9))
    delta: float = setting("Of each client's budget.", bounds=(1e-300, 0.999))
    rounds: int | None = setting("Of the first run.", None, bounds=(1, 10**9))
    client_keys: str = setting("Who makes the clients' keys.", "client", choices=("client", OPERATOR))
    server_folder: str = setting("On the server's host.", "/srv/fedprivacy")
    client_folder: str = setting("On a client's host.", "/srv/fedprivacy")
    records: str = setting("On a client's host.", "/srv/fedprivacy/records")
    environment: str = setting("On every host.", "/srv/fedprivacy/.venv")
    account: str = setting("On every host.", "fedprivacy")
    superlink_port: int = setting("On the server's host.", 8000, bounds=_PORTS)
    superexec_port: int = setting("On the server's host, for its health.", 8001, bounds=_PORTS)
    supernode_port: int = setting("On a client's host.", 9094, bounds=_PORTS)
    dashboard_port: int = setting("On the server's host.", 8050, bounds=_PORTS)
    days: int = setting("Validity of the certificates.", 365, bounds=(1, MAX_DAYS))

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read and check a description. Raises ConfigError: lists everything that is wrong with it."""
        try:
            given = tomllib.loads(file.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            example = "'fedprivacy deploy init --example' prints one to start from"
            raise ConfigError(f"description '{file}' cannot be read ({error}); {example}.") from error
        clients, problems = _names(given.pop("clients", None))
        settings, wrong = parse(FIELDS, given)
        problems += (wrong | not_allowed(FIELDS, settings)).values()
        problems += [f"{key} is missing; say it." for key in ("host", "epsilon", "delta") if key not in given]
        problems += _paths(settings)
        if "host" in settings:
            problems += _problems_of(lambda: subject_name(str(settings["host"])))
        if "task" in settings and "app" in settings:
            problems.append("task and app are both given; leave out one of them.")
        if problems:
            raise ConfigError(problems)
        if not settings.get("app"):
            settings.setdefault("task", DEFAULT_TASK)
        return cls(clients=clients, **settings)  # type: ignore[arg-type]

    def client_path(self, path: str, client: str) -> str:
        """A path of this description on one client's host."""
        return path.replace(CLIENT, client)

    def changes(self, other: Description) -> list[str]:
        """The settings that differ from those of another description, clients aside."""
        pairs = zip(FIELDS, dataclasses.astuple(self)[1:], dataclasses.astuple(other)[1:], strict=True)
        return [f"{key} is {theirs!r}, and was {own!r}" for key, own, theirs in pairs if own != theirs]

    def settings(self) -> dict[str, Any]:
        """Every setting that is not left open, by its key."""
        values = {key: getattr(self, field.name) for key, field in FIELDS.items()}
        return {"clients": list(self.clients)} | {k: value for k, value in values.items() if value not in (None, "")}


FIELDS = {key: field for key, field in fields_of(Description).items() if key != "clients"}
"""Every setting of a description but the list of clients, by its key."""


def _names(given: object) -> tuple[tuple[str, ...], list[str]]:
    if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
        return (), [f'clients is {given!r}; give a list of names, for example ["hospital-0", "hospital-1"].']
    taken = [f"a client is called '{SERVER}', as the other party is; give it another name."] if SERVER in given else []
    return tuple(given), taken + _problems_of(lambda: check_client_names(given))


def _paths(settings: Mapping[str, object]) -> list[str]:
    """Problems with paths on the hosts: services have no working directory that a relative path could begin in."""
    hosts = [
        key for key in ("server-folder", "client-folder", "records", "environment") if FIELDS[key].name in settings
    ]
    paths = {key: str(settings[FIELDS[key].name]) for key in hosts}
    problems = [
        f"{key} is '{path}'; give an absolute path without spaces, quotes or percent signs."
        for key, path in paths.items()
        if not path.startswith("/") or any(letter.isspace() or letter in "\"'%;\\$" for letter in path)
    ]
    if CLIENT in paths.get("server-folder", ""):
        problems.append(f"server-folder holds {CLIENT}, and there is one server; leave it out.")
    return problems


def _problems_of(check: Any) -> list[str]:
    try:
        check()
    except KeyFileError as error:
        return [str(error)]
    return []
