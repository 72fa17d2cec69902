"""Placement of simulated clients in processes and machines. It is no setting of a run, and changes no result of one."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from fedprivacy._support.imports import MissingExtraError, lacks
from fedprivacy.runs.settings.configuration import ConfigError

NEAREST = "auto"
"""The address of the cluster that runs on this machine, or that the environment variable RAY_ADDRESS names."""

_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Placement:
    """Processes that run the clients of a simulation.

    Attributes:
        workers: processes that train the clients of a large population; None: left open, which is this process alone,
            or as many as a cluster has room for.
        ray_address: of a Ray cluster that runs already, whose machines these processes are then on: "host:port", or
            "auto"; empty: there is none.
    """

    workers: int | None = None
    ray_address: str = ""

    def check(self) -> None:
        """Refuse what there cannot be, before anything is started.

        Raises:
            ConfigError: lists it.
        """
        if problems := [*self._worker_problems(), *self._address_problems()] or self._ray_problems():
            raise ConfigError(problems)

    @property
    def elsewhere(self) -> bool:
        """Return whether a large population trains in processes of its own."""
        return bool(self.ray_address) or (self.workers or 1) > 1

    @property
    def words(self) -> str:
        """The setting that asked for these processes, for people: "workers is 8"."""
        return f"ray-address is '{self.ray_address}'" if self.ray_address else f"workers is {self.workers or 1}"

    @property
    def options(self) -> list[str]:
        """Options of the command line that place another run alike; they leave the number of processes open."""
        return ["--ray-address", self.ray_address] if self.ray_address else []

    @property
    def keywords(self) -> str:
        """The same, as further keywords of a call."""
        return f", ray_address={self.ray_address!r}" if self.ray_address else ""

    @property
    def typed(self) -> str:
        """The options, as they are typed after others."""
        return "".join(f" {shlex.quote(word)}" for word in self.options)

    def _worker_problems(self) -> list[str]:
        if self.workers is None:
            return []
        if not isinstance(self.workers, int) or self.workers < 1:  # a keyword may be anything
            most = "as the cluster has GPUs or CPUs" if self.ray_address else "as cores"
            return [f"workers is {self.workers}; choose 1, for this process alone, or up to as many {most}."]
        return []

    def _address_problems(self) -> list[str]:
        given = f"ray-address is '{self.ray_address}'"
        if self.ray_address in ("", None):
            return []
        text = str(self.ray_address)
        if text.startswith("ray://"):
            return [
                f"{given}, for which Ray has a proxy; start this on a machine of the cluster, and give host:port, as "
                "'ray start' has printed it, or auto."
            ]
        if text != NEAREST and not _HOST_AND_PORT.fullmatch(text):
            return [f"{given}; give host:port, as 'ray start' has printed it, or auto, for the one on this machine."]
        return []

    def _ray_problems(self) -> list[str]:
        return [f"{self.words}, and {MissingExtraError('ray')}"] if self.elsewhere and lacks("ray") else []


HERE = Placement()
"""Placement of all clients in this process."""
