"""A party of a deployment, as the folder that was made for it says: who it is, where the server is, what must agree."""

from __future__ import annotations

import dataclasses
import platform
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Self

FILE = "party.toml"
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
        """True if this party is the server."""
        return self.party == SERVER

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the party from its folder.

        Raises:
            SetupError: it was made for no party.
        """
        try:
            given = tomllib.loads((folder / FILE).read_text())
            party = cls(**{key.replace("-", "_"): value for key, value in given.items()})
            fields = dataclasses.fields(party)
            if not all(type(getattr(party, field.name)).__name__ == field.type for field in fields):
                raise TypeError("a value of another type than it was written with")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError) as error:
            raise SetupError(
                f"'{folder}' holds no part of a deployment ({FILE}: {error}); name the folder that 'fedprivacy deploy "
                "init' made for this host."
            ) from error
        return party

    def facts(self) -> dict[str, str | int]:
        """The party's fields, as its file has them."""
        return {key.replace("_", "-"): value for key, value in dataclasses.asdict(self).items()}
