"""Placement of simulated clients in processes and machines. It is no setting of a run, and changes no result of one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from fedprivacy._support.durable import size_text
from fedprivacy._support.imports import MissingExtraError, lacks
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.settings.device import Gpu

NEAREST = "auto"
"""The address of the cluster that runs on this machine, or that the environment variable RAY_ADDRESS names."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"

_LEAST_MEMORY = 2**30
"""Smallest number of bytes of a GPU's memory for a worker: half of it goes to CUDA's own needs."""

_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place on this machine.

    Attributes:
        gpu: number of the GPU on which it computes, among those that this process sees; None: it computes on CPUs.
        share: part of the GPU's memory that is its own.
    """

    gpu: int | None = None
    share: float = 1.0

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its process, which sees its own GPU alone."""
        if self.gpu is None:
            return {}
        seen = os.environ.get(_VISIBLE)
        return {_VISIBLE: seen.split(",")[self.gpu] if seen else str(self.gpu)}


@dataclass(frozen=True, slots=True)
class Placement:
    """Processes that run the clients of a simulation.

    Attributes:
        workers: processes that train the clients of a large population; None: left open, which is one for each GPU
            where there are several, else this process alone, or as many as a cluster has room for.
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

    def seats(self, device: str, gpus: Sequence[Gpu]) -> Sequence[Seat]:
        """Return the seats of a population's workers on a machine; none: this process trains, or a cluster.

        GPUs of another kind than the first have other bits, and are used only by their number.

        Args:
            device: the run's setting.
            gpus: the GPUs of the machine.

        Raises:
            ConfigError: too many workers would share a GPU.
        """
        alike = [n for n, gpu in enumerate(gpus) if device in ("auto", "cuda") and gpu.kind == gpus[0].kind]
        usable = alike or [n for n in range(len(gpus)) if device == f"cuda:{n}"]
        workers = self.workers or (len(alike) if device == "auto" and not lacks("ray") else 1)
        if self.ray_address or workers < 2:
            return ()
        if not usable:
            return (Seat(),) * workers
        taken = [usable[number % len(usable)] for number in range(workers)]
        memory = gpus[usable[0]].memory
        if memory < taken.count(usable[0]) * _LEAST_MEMORY:
            raise ConfigError(
                [
                    f"{self.words}, but {taken.count(usable[0])} of them would share a GPU with {size_text(memory)} of "
                    f"memory; choose at most {max(1, memory // _LEAST_MEMORY * len(usable))}, or device cpu."
                ]
            )
        return tuple(Seat(gpu, 1.0 / taken.count(gpu)) for gpu in taken)

    @property
    def elsewhere(self) -> bool:
        """Return whether processes of their own were asked for, in which a large population trains."""
        return bool(self.ray_address) or (self.workers or 1) > 1

    @property
    def words(self) -> str:
        """The setting that asked for these processes, for people: "workers is 8"."""
        return f"ray-address is '{self.ray_address}'" if self.ray_address else f"workers is {self.workers or 'open'}"

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


HERE = Placement(workers=1)
"""Placement of all clients in this process."""
