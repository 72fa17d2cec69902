"""Workers on a Ray cluster that runs already: a cohort trains on its machines, and on their GPUs where they have any.

What workers change, and what not: `fedprivacy.flower.simulated.workers`. Each is a Ray actor that hosts many clients:
it opens their shards, so that records are loaded where they are used, and in a round it gets one message, with its row
of the cohort. The model goes to each machine once. The server, with its accounts, ledger and recorder, stays in the
process that joined the cluster, and needs no GPU.

Machines may go and come. What an actor was asked that dies, alone or with its machine, one that lives is asked, under
the same charges. In its place, and on machines that join later, others are started as soon as there is room, and train
from the next round on.

Which bits are the same: on CPUs of one kind those of one process with one thread, whatever the cluster looks like. A
GPU adds in another order than a CPU, or than a GPU of another kind: samples and noise are the same to the last bit, and
a sum of gradients may differ in float32's last bits before it is rounded to the lattice, a released coordinate then by
one step of the lattice. On a GPU clients train one after another, so that neither company nor division changes their
bits; that the same kind of GPU finds the same bits again is up to PyTorch's kernels. So either all workers have a GPU
or none has, and those with other versions of what computes are refused.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from textwrap import shorten
from typing import Any, Self

import torch

from fedprivacy.flower.simulated.joining import join_cluster
from fedprivacy.flower.simulated.populations import Population, Start, TrainTogether
from fedprivacy.flower.simulated.workers import Crew, Worker, WorkerError, answer_to, pickle_by_value
from fedprivacy.flower.wire.messages import Enrolment
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.runs.settings.device import choose_device, take_share
from fedprivacy.tasks import Task

log = logging.getLogger("fedprivacy.engine")

_LOOK_SECONDS = 1.0
"""Seconds between two looks at the cluster's resources while workers start."""

_PARTS = 10_000
"""Number of parts into which Ray can divide a GPU."""

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
        greeting: Greeting | None = self._result(self.greeting)
        if greeting is None:
            return False
        machine, theirs = greeting.machine, greeting.versions
        self.name += f" on {machine}"
        if greeting.gpus < self._gpus:
            raise self._error(f"PyTorch finds no GPU on {machine}: install a build for its GPUs, or use device cpu")
        if other := [
            f"{name} {theirs[name]}, and here {own}" for name, own in versions().items() if theirs[name] != own
        ]:
            raise self._error(f"{machine} has {'; '.join(other)}: install the same on both, or results would differ")
        return True

    def ask(self, start: Any, errand: bytes) -> None:
        """See `Worker`."""
        self._asked.append(self._handle.answer.remote(start, errand))

    def answer(self) -> bytes | None:
        """See `Worker`."""
        answer: bytes | None = self._result(self._asked.popleft())
        return answer

    def kill(self) -> str:
        """End it, and say how it ended."""
        self._ray.kill(self._handle)
        return self._end

    def _result(self, reference: Any) -> Any:
        """The result of a call; None: the worker died before it returned one."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            *_, last_but_one, last = ["", "", *(line for line in str(error).splitlines() if line.strip() == line)]
            if getattr(error, "actor_init_failed", False):
                remedy = "install on each machine what is installed here"
                raise self._error(f"a worker cannot be made there ({last}); {remedy}") from error
            self._end = f"{type(error).__name__}: {shorten(f'{last_but_one} {last}', _MOST_WORDS)}"
            return None

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self._placement.words}, but {problem}.")


class Hand:
    """The remote side of a worker: the population inside a Ray actor.

    Args:
        luggage: the driver's module path and folder, and the arguments of its population, pickled.
    """

    def __init__(self, luggage: bytes) -> None:
        paths, folder, share, everything = pickle.loads(luggage)
        take_share(share or 1.0)
        sys.path += [path for path in paths if path not in sys.path]
        with suppress(OSError):  # no such folder here; then no path of the task's may be relative
            os.chdir(folder)
        self._population = Population(*pickle.loads(everything))

    def greet(self) -> Greeting:
        """Report the worker's machine, versions and GPUs."""
        return Greeting(socket.gethostname(), versions(), torch.cuda.device_count())

    def answer(self, start: bytes, errand: bytes) -> bytes:
        return answer_to(self._population, start, errand)


def versions() -> dict[str, str]:
    """Versions of the packages that compute in this process, by package."""
    return {name: str(import_module(name).__version__) for name in _COMPUTES}


class ClusterWorkers(Crew):
    """A population whose cohorts train on a Ray cluster, to which this process belongs while it is entered.

    Args:
        task, config, train: see `Population`; they go to every worker.
        placement: names the cluster, and how many workers there are to be. Left open, there is one for each of its
            GPUs; for each of its CPUs, where it has none or the device is "cpu". More than it has GPUs share them.

    Raises:
        ConfigError: when it is made or entered: there cannot be these workers, or the task does not open a shard there;
            says why, and what to do.
    """

    def __init__(self, task: Task | None, config: RunConfig, train: TrainTogether, placement: Placement) -> None:
        if config.device.startswith("cuda:"):
            raise ConfigError(
                f"device is '{config.device}', but {placement.words}: there a worker sees only its own; use cuda."
            )
        super().__init__(task, config, train, placement)
        self._given, self._device = task, config.device
        self._workers: list[Actor] = []
        self._coming: list[Actor] = []

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            self._ray = entered.enter_context(join_cluster(self._placement.ray_address))
            entered.callback(self.close)
            self._pack()
            self._begin()
            self._enrolments = self.enrolments_by_workers()
            self._leave = entered.pop_all().close
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def close(self) -> None:
        """End the workers now: all their data exists elsewhere, too."""
        while actors := self._workers or self._coming:
            actors.pop().kill()

    def warn_of_messages(self, reason: str) -> None:
        """See `Crew`.

        Raises:
            ConfigError: the clients now run on this machine, which lacks the device.
        """
        super().warn_of_messages(reason)
        choose_device(self._device)

    def enrolments(self) -> Iterator[Enrolment]:
        """See `Population`; the clients were enrolled when the workers had started."""
        return iter(self._enrolments)

    def _prepare_start(self, start: Start | None) -> Any:
        return self._ray.put(pickle.dumps(start))

    def _ready(self) -> Sequence[Worker]:
        self._ask_for_more()
        try:
            self._take_in(0.0)
            self._gather(1)
        except ConfigError as error:  # a machine that has joined since, and will not do
            log.warning("%s", error)
        if not self._workers:
            raise WorkerError(
                f"All workers of the cluster have died, and none came within node-timeout "
                f"({self._config.node_timeout:g} s). See to the cluster, or choose fewer workers if memory was short."
            )
        return self._workers

    def _instead_of(self, dead: Sequence[Worker]) -> Sequence[Worker]:
        """Those that live: to start another takes seconds, and room, which may have gone with a machine."""
        self._workers = [worker for worker in self._workers if worker not in dead]
        return self._workers or self._ready()

    def _pack(self) -> None:
        """Make what every worker gets once, in memory that each machine fetches it from."""
        self._gpus = self._gpus_of_each()
        config = replace(self._config, device="cuda" if self._gpus else "cpu")
        everything = pickle_by_value(self._placement, (self._given, config, self._train))
        self._luggage = self._ray.put(pickle.dumps((sys.path, Path.cwd(), self._gpus, everything)))

    def _begin(self) -> None:
        """Have all workers come, before anybody is charged for what they are to train."""
        self._gather(math.inf)
        if self._coming:
            each = f"a CPU and {self._gpus:.3g} of a GPU" if self._gpus else "a CPU"
            raise ConfigError(
                f"{self._placement.words}, but {len(self._workers)} of {self._wanted_workers()} workers came "
                f"within node-timeout ({self._config.node_timeout:g} s): each needs {each}, and {self._free()}. "
                "Choose fewer workers, end what else runs there, or raise node-timeout."
            )

    def _gather(self, least: float) -> None:
        """Wait until so many workers are here, or all; node-timeout at most. Raises what `_take_in` does."""
        deadline = time.monotonic() + self._config.node_timeout
        while len(self._workers) < least and self._ask_for_more() and (left := deadline - time.monotonic()) > 0:
            self._take_in(min(left, _LOOK_SECONDS))

    def _ask_for_more(self) -> bool:
        """Have as many workers started as are missing, in places that are free; whether any are coming."""
        missing = self._wanted_workers() - len(self._workers)
        while len(self._coming) > max(0, missing):  # a machine has gone, and there may never be room for them
            self._coming.pop().kill()
        taken = {actor.place for actor in self._workers + self._coming}
        free = (place for place in count() if place not in taken)
        self._coming += [self._start_worker(place) for place in islice(free, max(0, missing - len(self._coming)))]
        return bool(self._coming)

    def _take_in(self, seconds: float) -> None:
        """Take in the workers that have started; if there are none, wait so many seconds for the first.

        Raises:
            ConfigError: a started worker is unsuitable; it is ended.
        """
        if not self._coming:
            return
        by_greeting = {actor.greeting: actor for actor in self._coming}
        self._ray.wait(list(by_greeting), num_returns=1, timeout=seconds)
        here, _ = self._ray.wait(list(by_greeting), num_returns=len(by_greeting), timeout=0.0)
        for actor in map(by_greeting.__getitem__, here):
            self._coming.remove(actor)
            try:
                lives = actor.be_greeted()
            except ConfigError:
                actor.kill()
                raise
            if lives:
                self._workers.append(actor)
            else:
                log.warning("%s died before it began (%s).", actor.name, actor.kill())
        self._workers.sort(key=lambda actor: actor.place)

    def _start_worker(self, place: int) -> Actor:
        resources = {"num_cpus": 1, "num_gpus": self._gpus}
        own = {
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}},
        }
        handle = self._ray.remote(Hand).options(**resources, **own).remote(self._luggage)
        return Actor(self._ray, handle, place, self._gpus, self._placement)

    def _wanted_workers(self) -> int:
        """The number of workers that there should be now."""
        if self._placement.workers is not None:
            return self._placement.workers
        found = self._ray.cluster_resources().get("GPU" if self._gpus else "CPU", 0.0)
        return max(1, min(int(found), self._config.clients))

    def _gpus_of_each(self) -> float:
        """The fraction of a GPU that each worker gets; 0: workers compute on CPUs."""
        gpus = int(self._ray.cluster_resources().get("GPU", 0.0))
        if self._device == "cpu" or (self._device == "auto" and not gpus):
            return 0.0
        if not gpus:
            raise ConfigError(
                f"device is 'cuda', but {self._placement.words}, and no machine there has a GPU; use auto or cpu."
            )
        sharing = math.ceil((self._placement.workers or gpus) / gpus)
        return _PARTS // sharing / _PARTS

    def _free(self) -> str:
        """Describe the cluster's free resources, for people."""
        have, left = self._ray.cluster_resources(), self._ray.available_resources()
        kinds = ("CPU", "GPU") if self._gpus else ("CPU",)
        return " and ".join(f"{left.get(kind, 0.0):g} of {have.get(kind, 0.0):g} {kind}s are free" for kind in kinds)
