"""A Ray actor that is a worker: what the driver knows of it, and what it is on the machine where it was made."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from textwrap import shorten
from typing import Any

import torch

from fedprivacy.flower.simulated.crew import answer_to
from fedprivacy.flower.simulated.populations import Population
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.settings.configuration import ConfigError

_COMPUTES = ("fedprivacy", "torch", "numpy")
"""Packages on whose versions a run's bits depend."""

_MOST_WORDS = 200
"""Characters of what Ray tells of a death."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The facts that a worker reports when it has started.

    Attributes:
        machine: name of its machine.
        versions: versions of the packages that compute.
        gpus: how many of them PyTorch finds.
    """

    machine: str
    versions: dict[str, str]
    gpus: int


class Actor:
    """A worker, as the driver knows it.

    Attributes:
        name: for people.
        place: its number among the workers, from 0.
        greeting: comes when it has started.
    """

    def __init__(self, ray: Any, handle: Any, place: int, gpus: float, placement: Placement) -> None:
        self.name, self.place = f"Worker {place + 1}", place
        self._ray, self._handle, self._gpus, self._placement = ray, handle, gpus, placement
        self.greeting = handle.greet.remote()
        self._asked: deque[Any] = deque()
        self._end = "ended"

    def be_greeted(self) -> bool:
        """Learn where it is, and whether it lives.

        Raises:
            ConfigError: it cannot be made there, or would have other bits than this process.
        """
        greeting: Greeting | None = self._got(self.greeting)
        if greeting is None:
            return False
        machine, theirs = greeting.machine, greeting.versions
        self.name += f" on {machine}"
        if greeting.gpus < self._gpus:
            raise self._unsuited(f"PyTorch finds no GPU on {machine}: install a build for its GPUs, or use device cpu")
        if other := [
            f"{name} {theirs[name]}, and here {own}" for name, own in versions().items() if theirs[name] != own
        ]:
            raise self._unsuited(f"{machine} has {'; '.join(other)}: install the same on both, or results would differ")
        return True

    def ask(self, start: Any, errand: bytes) -> None:
        """See `Worker`."""
        self._asked.append(self._handle.answer.remote(start, errand))

    def answer(self) -> bytes | None:
        """See `Worker`."""
        answer: bytes | None = self._got(self._asked.popleft())
        return answer

    def kill(self) -> str:
        """End it, and say how it ended."""
        self._ray.kill(self._handle)
        return self._end

    def _got(self, reference: Any) -> Any:
        """The result of a call; None: the worker died before it returned one."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            *_, last_but_one, last = ["", "", *(line for line in str(error).splitlines() if line.strip() == line)]
            if getattr(error, "actor_init_failed", False):
                remedy = "install on each machine what is installed here"
                raise self._unsuited(f"a worker cannot be made there ({last}); {remedy}") from error
            self._end = f"{type(error).__name__}: {shorten(f'{last_but_one} {last}', _MOST_WORDS)}"
            return None

    def _unsuited(self, problem: str) -> ConfigError:
        return ConfigError([f"{self._placement.words}, but {problem}."])


class Hand:
    """The remote side of a worker: the population inside a Ray actor.

    Args:
        luggage: the driver's module path and folder, and the arguments of its population, pickled.
    """

    def __init__(self, luggage: bytes) -> None:
        paths, folder, everything = pickle.loads(luggage)
        sys.path += [path for path in paths if path not in sys.path]
        with suppress(OSError):  # no such folder here; then no path of the task's may be relative
            os.chdir(folder)
        self._population = Population(*pickle.loads(everything))

    def greet(self) -> Greeting:
        """Report the worker's machine, versions and GPUs."""
        return Greeting(socket.gethostname(), versions(), torch.cuda.device_count())

    def answer(self, start: bytes, errand: bytes) -> bytes:
        """See `answer_to`."""
        return answer_to(self._population, start, errand)


def versions() -> dict[str, str]:
    """Versions of the packages that compute in this process, by package."""
    return {name: str(import_module(name).__version__) for name in _COMPUTES}
