"""Worker processes: a cohort of a simulated population trains on several cores, each client where its shard is kept.

What they change, and what not: `fedprivacy.flower.simulated.crew`. A worker ends with the pipe to it, whatever it is
doing: none outlives the server.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import NoReturn

from fedprivacy.flower.simulated.crew import Crew, Worker, answer_to, packed
from fedprivacy.flower.simulated.populations import Population, Start, TrainTogether
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.tasks import Task

_PROGRAM = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]))"


class Workers(Crew):
    """A population whose cohorts train in worker processes on this machine, which start with the first one.

    Args:
        task, config, train: see `Population`; they go to every worker.
        placement: says how many.

    Raises:
        ConfigError: the task cannot go to another process.
    """

    def __init__(self, task: Task | None, config: RunConfig, train: TrainTogether, placement: Placement) -> None:
        super().__init__(task, config, train, placement)
        self._number = placement.workers or 1
        self._everything = packed(self._placement, (task, config, train))
        self._workers: list[_Process] = []

    def close(self) -> None:
        """End the workers now: all their data exists elsewhere, too."""
        while self._workers:
            self._workers.pop().kill()

    def _ready(self) -> Sequence[Worker]:
        if not self._workers:
            self._workers = self._started(range(self._number))
        return self._workers

    def _instead_of(self, dead: Sequence[Worker]) -> Sequence[Worker]:
        """New processes, in the places of the dead."""
        places = [place for place, worker in enumerate(self._workers) if worker in dead]
        others = self._started(places)
        for place, other in zip(places, others, strict=True):
            self._workers[place] = other
        return others

    def _handed(self, start: Start | None) -> bytes:
        return pickle.dumps(start)

    def _started(self, places: Sequence[int]) -> list[_Process]:
        """New workers, which import what they need at the same time."""
        started = [_Process(f"Worker {place + 1} of {self._number}") for place in places]
        for worker in started:
            worker.send(pickle.dumps(sys.path), self._everything)
        return started


class _Process:
    """One process, and the pipe to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._pipe, other = Pipe()
        with other:
            self._process = subprocess.Popen(  # not multiprocessing's: it would import a user's script once more
                [sys.executable, "-c", _PROGRAM, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                process_group=0,  # a terminal's Ctrl-C is the server's alone
            )

    def ask(self, start: bytes, errand: bytes) -> None:
        """See `Worker`."""
        self.send(start, errand)

    def send(self, *messages: bytes) -> None:
        """Send; one that is dead is found out when it does not answer."""
        try:
            for message in messages:
                self._pipe.send_bytes(message)
        except OSError:
            pass

    def answer(self) -> bytes | None:
        """See `Worker`."""
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def kill(self) -> str:
        """End it, and say how it ended."""
        self._process.kill()
        status = self._process.wait()
        self._pipe.close()
        return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def serve(descriptor: int) -> NoReturn:
    """Run a worker, which does one errand after another until the pipe closes."""
    pipe, asked = Connection(descriptor), SimpleQueue[bytes]()
    threading.Thread(target=_receive, args=(pipe, asked), daemon=True).start()
    sys.path[:] = pickle.loads(asked.get())
    population = Population(*pickle.loads(asked.get()))
    while True:
        pipe.send_bytes(answer_to(population, asked.get(), asked.get()))


def _receive(pipe: Connection, asked: SimpleQueue[bytes]) -> None:
    """Take in what is sent, in a thread of its own: so the end of the pipe is the end of the process, at any moment."""
    try:
        while True:
            asked.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)
