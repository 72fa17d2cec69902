"""A population whose clients are in other processes: workers, each takes a row of clients.

`Crew` is any such population: it divides a cohort, and repeats what a dead worker leaves undone. The workers of
`Workers` are processes of this machine; `fedprivacy.flower.simulated.cluster` has those of a Ray cluster.

The server stays where it is, with its accounts, ledger and recorder. Each worker trains a row of clients that follow
one another in the cohort, as `Population` trains all of them. A client has the same bits in any company, and their sum
in any division (`fedprivacy.training.cohort`): so neither the number of workers nor the assignment of rows changes a
bit of a seeded run. Each worker computes with one thread. A single process uses more threads for models of which a few
records fill the cache (`fedprivacy.gradients.surroundings`), and then has other bits, unless `OMP_NUM_THREADS=1` is
set.

Rows are of the split's order, so that a client has the same worker in most rounds: there its shard is opened, when it
is first asked for, and kept. On a machine with GPUs a worker sees one of them, and has its share of the memory; the
server's process opens the same shards on the CPU.

The only randomness that a worker gets is one round's key. If a worker dies, another one gets its errand with the same
key: the training that was charged is computed again, to the same bits, and no other is. A process on this machine ends
with the pipe to it, whatever it is doing: none outlives the server.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

from fedprivacy.flower.simulated.populations import CohortUpdate, Order, Population, Start, TrainTogether
from fedprivacy.flower.wire.messages import Enrolment
from fedprivacy.runs.placement import Placement, Seat
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.runs.settings.device import take_share
from fedprivacy.tasks import Task, TaskError

log = logging.getLogger("fedprivacy.engine")

USELESS = "%s, and this process alone trains: with %s, clients get messages one after another."
"""Warning with two gaps: the setting that asked for workers, and the reason why they have nothing to do."""


class WorkerError(RuntimeError):
    """Worker processes died or failed; the text names a remedy."""


class Errand(Protocol):
    """A piece of work for a row of clients, sent to a worker as a pickle."""

    def run(self, population: Population, start: Start | None) -> object:
        """Do the work, and return its result, which is pickled, too.

        Args:
            population: the population of the clients.
            start: the common start of clients that train; None: they do not train.

        Raises:
            TaskError: the task prevents the work; the text names a remedy.
        """


@dataclass(frozen=True, slots=True)
class TrainingErrand:
    """The errand to train consecutive clients of a cohort, beginning at the rank `first`."""

    first: int
    orders: Sequence[Order]

    def run(self, population: Population, start: Start | None) -> CohortUpdate:
        """Return the sum of their releases, on the CPU, where any process can read it."""
        assert start is not None
        update = population.train_range(self.first, self.orders, start)
        update.sum.move("cpu")
        return update


@dataclass(frozen=True, slots=True)
class EnrolmentErrand:
    """The errand to enrol the clients of consecutive parts of the split."""

    parts: range

    def run(self, population: Population, start: Start | None) -> dict[int, Enrolment]:
        """Return the clients' enrolments, by part."""
        return dict(zip(self.parts, population.enrol(self.parts), strict=True))


class Worker(Protocol):
    """Another process, which does one errand after another.

    Attributes:
        name: for people: "Worker 2 of 8".
    """

    name: str

    def ask(self, start: Any, errand: bytes) -> None:
        """Send an errand; a dead worker is noticed only when it does not answer.

        Args:
            start: the common start, in the form in which its crew hands it over.
            errand: pickled.
        """

    def answer(self) -> bytes | None:
        """Return the pickled answer to the oldest unanswered errand; None: the worker has died."""

    def kill(self) -> str:
        """End it, and say how it ended."""


class Crew(Population, ABC):
    """A population with workers. A context manager, with which they end.

    Args:
        task, config, train: see `Population`; they go to every worker.
        placement: the settings that asked for workers.
    """

    def __init__(self, task: Task | None, config: RunConfig, train: TrainTogether, placement: Placement) -> None:
        super().__init__(task, config, train)
        self._placement = placement

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the workers now: all their data exists elsewhere, too."""

    @abstractmethod
    def _ready(self) -> Sequence[Worker]:
        """The workers that wait for errands, at least one."""

    @abstractmethod
    def _instead_of(self, dead: Sequence[Worker]) -> Sequence[Worker]:
        """Return workers that take over from dead ones; at least one."""

    @abstractmethod
    def _prepare_start(self, start: Start | None) -> Any:
        """Prepare a start once for all workers."""

    def warn_of_messages(self, reason: str) -> None:
        """End the workers, and warn that they are of no use, if somebody asked for them."""
        self.close()
        if self._placement.elsewhere:
            log.warning(USELESS, self._placement.words, reason)

    def enrolments_by_workers(self) -> list[Enrolment]:
        """Return every client's enrolment; each worker opens the shards of a row of clients.

        Raises:
            ConfigError, WorkerError: see `train_range`; nobody has been charged yet.
        """
        said: dict[int, Enrolment] = {}
        for row in self._divide(self._config.clients, EnrolmentErrand):
            assert isinstance(row, dict)
            said |= row
        return [said[part] for part in range(self._config.clients)]

    def train_range(self, first: int, orders: Sequence[Order], start: Start) -> CohortUpdate:
        """Train as `Population` does, with the clients divided evenly among the workers.

        Raises:
            WorkerError: a worker died, and so did the one that took its clients; or it could not train.
        """

        def training(row: range) -> TrainingErrand:
            return TrainingErrand(first + row.start, orders[row.start : row.stop])

        update = CohortUpdate()
        for part in self._divide(len(orders), training, start):
            assert isinstance(part, CohortUpdate)
            update.join(part)
        return update

    def _divide(self, clients: int, errand: Callable[[range], Errand], start: Start | None = None) -> Iterator[object]:
        """Divide so many clients into rows, one for each worker, and yield the errands' results in any order.

        Raises:
            ConfigError, WorkerError: see `train_range`; the workers are ended.
        """
        try:
            workers = self._ready()
            cuts = [clients * number // len(workers) for number in range(len(workers) + 1)]
            errands = [pickle.dumps(errand(range(*row))) for row in pairwise(cuts)]
            handed = self._prepare_start(start)
            lost = yield from self._collect(list(zip(workers, errands, strict=True)), handed)
            if lost:
                yield from self._heard_of_others(lost, handed, len(workers))
        except BaseException:
            self.close()  # whatever they were asked, nobody waits for it any more
            raise

    def _heard_of_others(self, lost: Sequence[_Asked], handed: Any, workers: int) -> Iterator[object]:
        """Yield the results of errands whose workers have died, each from another worker."""
        ends = {worker: worker.kill() for worker, _ in lost}
        for worker, end in ends.items():
            log.warning("%s died (%s); another one takes its clients.", worker.name, end)
        others = self._instead_of(list(ends))
        again = [(other, errand) for other, (_, errand) in zip(cycle(others), lost, strict=False)]
        for other, errand in (yield from self._collect(again, handed)):
            first = next(worker for worker, its in lost if its is errand)
            raise WorkerError(
                f"{first.name} died ({ends[first]}), and so did the one that took its clients ({other.kill()}). If "
                f"memory was short, choose fewer workers; there were {workers}."
            )

    def _collect(self, asked: Sequence[_Asked], handed: Any) -> Generator[object, None, list[_Asked]]:
        """Yield the results of errands; return the errands whose workers have died."""
        for worker, errand in asked:
            worker.ask(handed, errand)
        lost = []
        for worker, errand in asked:
            answer = worker.answer()
            if answer is None:
                lost.append((worker, errand))
            else:
                yield _unpickle(answer)
        return lost


_Asked = tuple[Worker, bytes]
"""A worker, and the errand on which it was sent."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The traceback of an errand that failed."""

    words: str


def pickle_by_value(crew: Placement, everything: object) -> bytes:
    """Pickle by value even what a script defines, for a process that does not run this script.

    Args:
        crew: the settings that asked for this process.
        everything: the objects that the process needs.

    Raises:
        ConfigError: an object cannot go to another process.
    """
    from ray import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(everything)
    except Exception as error:
        remedy = "leave ray-address open" if crew.ray_address else "choose workers 1"
        raise ConfigError(f"{crew.words}, but the task cannot go to another process ({error}); {remedy}.") from error


def answer_to(population: Population, start: bytes, errand: bytes) -> bytes:
    """Return a worker's answer to an errand, both pickled."""
    try:
        return pickle.dumps(pickle.loads(errand).run(population, pickle.loads(start)))
    except TaskError as error:
        return pickle.dumps(error)
    except Exception:
        return pickle.dumps(_Failure(traceback.format_exc()))


def _unpickle(answer: bytes) -> object:
    """Return the result of an errand, or raise its error."""
    found = pickle.loads(answer)
    if isinstance(found, _Failure):
        raise WorkerError(f"A worker could not do its part:\n{found.words}")
    if isinstance(found, TaskError):
        problem = ConfigError(str(found))
        for note in getattr(found, "__notes__", []):
            problem.add_note(note)
        raise problem
    return found


_PROGRAM = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]), float(sys.argv[2]))"


class Workers(Crew):
    """A population whose cohorts train in worker processes on this machine, which start with the first errand.

    Args:
        task, config, train: see `Population`; they go to every worker.
        placement: the settings that asked for workers.
        seats: the seat of each.

    Raises:
        ConfigError: the task cannot go to another process. When it is entered: it cannot open a shard on a GPU.
    """

    def __init__(
        self, task: Task | None, config: RunConfig, train: TrainTogether, placement: Placement, seats: Sequence[Seat]
    ) -> None:
        self._seats, self._on_gpus = seats, seats[0].gpu is not None
        super().__init__(task, config, train, placement)
        theirs = replace(config, device="cuda") if self._on_gpus else config
        self._everything = pickle_by_value(placement, (task, theirs, train))
        self._workers: list[_Process] = []

    def __enter__(self) -> Self:
        """Have GPUs' memory filled with shards before there is a folder, or anybody is charged."""
        self._enrolments = self.enrolments_by_workers() if self._on_gpus else None
        return self

    def enrolments(self) -> Iterator[Enrolment]:
        """See `Population`."""
        return super().enrolments() if self._enrolments is None else iter(self._enrolments)

    def close(self) -> None:
        while self._workers:
            self._workers.pop().kill()

    def _ready(self) -> Sequence[Worker]:
        if not self._workers:
            self._workers = self._start_workers(range(len(self._seats)))
        return self._workers

    def _instead_of(self, dead: Sequence[Worker]) -> Sequence[Worker]:
        """New processes, in the places of the dead."""
        places = [place for place, worker in enumerate(self._workers) if worker in dead]
        others = self._start_workers(places)
        for place, other in zip(places, others, strict=True):
            self._workers[place] = other
        return others

    def _prepare_start(self, start: Start | None) -> bytes:
        return pickle.dumps(start)

    def _start_workers(self, places: Sequence[int]) -> list[_Process]:
        """New workers, which import what they need at the same time."""
        started = [_Process(f"Worker {place + 1} of {len(self._seats)}", self._seats[place]) for place in places]
        for worker in started:
            worker.send(pickle.dumps(sys.path), self._everything)
        return started


class _Process:
    """One process, and the pipe to it."""

    def __init__(self, name: str, seat: Seat) -> None:
        self.name = name
        self._pipe, other = Pipe()
        with other:
            self._process = subprocess.Popen(  # not multiprocessing's: it would import a user's script once more
                [sys.executable, "-c", _PROGRAM, str(other.fileno()), str(seat.share)],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | seat.environment,
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


def serve(descriptor: int, share: float) -> NoReturn:
    """Run a worker with a share of its GPU, which does one errand after another until the pipe closes."""
    pipe, asked = Connection(descriptor), SimpleQueue[bytes]()
    threading.Thread(target=_receive, args=(pipe, asked), daemon=True).start()
    sys.path[:] = pickle.loads(asked.get())
    everything = asked.get()
    take_share(share)
    population = Population(*pickle.loads(everything))
    while True:
        pipe.send_bytes(answer_to(population, asked.get(), asked.get()))


def _receive(pipe: Connection, asked: SimpleQueue[bytes]) -> None:
    """Take in what is sent, in a thread of its own: so the end of the pipe is the end of the process, at any moment."""
    try:
        while True:
            asked.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)
