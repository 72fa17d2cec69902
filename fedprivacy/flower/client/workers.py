"""Worker processes: a cohort of a simulated population trains on several cores, each client where its shard is kept.

The server stays where it is, with its accounts, ledger and recorder. Each worker trains a row of clients that follow
one another in the cohort, as `Population` trains all of them. A client has the same bits in any company, and their sum
in any division (`fedprivacy.training.pairwise`): so how many workers there are changes no bit of a seeded run. Each
computes with one thread. One process alone has more for models of which a few records fill the cache
(`fedprivacy.gradients.threads`), and then other bits, unless it is told to have one, too (`OMP_NUM_THREADS=1`).

Rows are of the split's order, so that a client has the same worker in most rounds: there its shard is opened, when it
is first asked for, and kept.

Of randomness a worker gets one round's key. One that dies is replaced, and the new one trains the same clients with the
same key: what a charge has paid for is computed again, to the same bits, and nothing else is. A worker ends with the
pipe to it, whatever it is doing: none outlives the server.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import TracebackType
from typing import NoReturn, Self

from fedprivacy.flower.client.cohort import CohortUpdate, Order, Population, Start
from fedprivacy.runs.configuration import ConfigError, RunConfig
from fedprivacy.tasks import Task

log = logging.getLogger("fedprivacy.engine")

USELESS = "workers is %d, and this process alone trains: with %s, clients get messages one after another."
"""Of how many, and why."""

_PROGRAM = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]))"


class WorkerError(RuntimeError):
    """Worker processes that died, or could not train, and what may help."""


class Workers(Population):
    """A population whose cohorts train in worker processes, which start with the first one. A context manager.

    Args:
        task, config: see `Population`; the task goes to every worker.
        workers: how many.

    Raises:
        ConfigError: the task cannot go to another process.
    """

    def __init__(self, task: Task | None, config: RunConfig, workers: int) -> None:
        super().__init__(task, config)
        self._number = workers
        self._everything = _pickled_by_value((task, config), workers)
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, now: they hold nothing that is not somewhere else."""
        while self._workers:
            self._workers.pop().kill()

    def warn_of_messages(self, why: str) -> None:
        """Say that no worker is of use."""
        log.warning(USELESS, self._number, why)

    def trained(self, first: int, orders: Sequence[Order], start: Start) -> CohortUpdate:
        """What `Population` trains, each worker as many clients as the next, or one more or less.

        Raises:
            WorkerError: a worker died, and so did the one that took its place; or it could not train.
        """
        if not self._workers:
            self._workers = self._started(self._number)
        cuts = [len(orders) * number // self._number for number in range(self._number + 1)]
        rows = [pickle.dumps((first + begin, orders[begin:end])) for begin, end in pairwise(cuts)]
        begins, update = pickle.dumps(start), CohortUpdate(apart={} if start.apart else None)
        try:
            for worker, row in zip(self._workers, rows, strict=True):
                worker.ask(begins, row)
            for number, row in enumerate(rows):
                answer = self._workers[number].answer()
                if answer is None:
                    answer = self._again(number, begins, row)
                update.join(answer)
        except BaseException:
            self.close()  # whatever they were asked, nobody waits for it any more
            raise
        return update

    def _again(self, number: int, begins: bytes, row: bytes) -> CohortUpdate:
        """What a worker has died of telling: from a new one."""
        status = self._workers[number].kill()
        log.warning("Worker %d of %d died (%s); another trains its clients.", number + 1, self._number, status)
        (self._workers[number],) = self._started(1)
        self._workers[number].ask(begins, row)
        answer = self._workers[number].answer()
        if answer is None:
            raise WorkerError(
                f"Worker {number + 1} of {self._number} died ({status}), and so did the one that took its place "
                f"({self._workers[number].kill()}). If memory was short, choose fewer workers; workers is "
                f"{self._number}."
            )
        return answer

    def _started(self, number: int) -> list[_Worker]:
        """New workers, which import what they need at the same time."""
        started = [_Worker() for _ in range(number)]
        for worker in started:
            worker.ask(pickle.dumps(sys.path), self._everything)
        return started


class _Worker:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, other = Pipe()
        with other:
            self._process = subprocess.Popen(  # not multiprocessing's: it would import a user's script once more
                [sys.executable, "-c", _PROGRAM, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                process_group=0,  # a terminal's Ctrl-C is the server's alone
            )

    def ask(self, *messages: bytes) -> None:
        """Send; one that is dead is found out when it does not answer."""
        try:
            for message in messages:
                self._pipe.send_bytes(message)
        except OSError:
            pass

    def answer(self) -> CohortUpdate | None:
        """What it has trained; None: it has died.

        Raises:
            WorkerError: it could not train; says why.
        """
        try:
            answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        if isinstance(answer, CohortUpdate):
            return answer
        raise WorkerError(f"A worker could not train its clients:\n{answer}")

    def kill(self) -> str:
        """End it, and say how it ended."""
        self._process.kill()
        status = self._process.wait()
        self._pipe.close()
        return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def _pickled_by_value(what: object, workers: int) -> bytes:
    """Whatever a script has defined, so that a process which does not run this script can have it."""
    from ray import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(what)
    except Exception as error:
        raise ConfigError(
            [f"workers is {workers}, but the task cannot go to another process ({error}); choose workers 1."]
        ) from error


def serve(descriptor: int) -> NoReturn:
    """What a worker does until the pipe closes: train one row of clients after another."""
    pipe, asked = Connection(descriptor), SimpleQueue[bytes]()
    threading.Thread(target=_receive, args=(pipe, asked), daemon=True).start()
    sys.path[:] = pickle.loads(asked.get())
    task, config = pickle.loads(asked.get())
    population = Population(task, config)
    while True:
        start = pickle.loads(asked.get())
        pipe.send_bytes(_trained(population, start, pickle.loads(asked.get())))


def _trained(population: Population, start: Start, row: tuple[int, Sequence[Order]]) -> bytes:
    try:
        return pickle.dumps(population.trained(*row, start))
    except Exception:
        return pickle.dumps(traceback.format_exc())


def _receive(pipe: Connection, asked: SimpleQueue[bytes]) -> None:
    """Take in what is sent, in a thread of its own: so the end of the pipe is the end of the process, at any moment."""
    try:
        while True:
            asked.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)
