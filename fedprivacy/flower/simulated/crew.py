"""A population whose clients are in other processes: workers, each takes a row of clients.

The server stays where it is, with its accounts, ledger and recorder. Each worker trains a row of clients that follow
one another in the cohort, as `Population` trains all of them. A client has the same bits in any company, and their sum
in any division (`fedprivacy.training.pairwise`): so how many workers there are, and who has which row, changes no bit
of a seeded run. Each computes with one thread. One process alone has more for models of which a few records fill the
cache (`fedprivacy.gradients.threads`), and then other bits, unless it is told to have one, too (`OMP_NUM_THREADS=1`).

Rows are of the split's order, so that a client has the same worker in most rounds: there its shard is opened, when it
is first asked for, and kept.

Of randomness a worker gets one round's key. What one was asked that dies, another is asked, with the same key: what a
charge has paid for is computed again, to the same bits, and nothing else is.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from types import TracebackType
from typing import Any, Protocol, Self

from fedprivacy.flower.simulated.orders import Order, Start, TrainTogether
from fedprivacy.flower.simulated.populations import CohortUpdate, Population
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.tasks import Task, TaskError

log = logging.getLogger("fedprivacy.engine")

USELESS = "%s, and this process alone trains: with %s, clients get messages one after another."
"""What asked for workers, and why there is nothing for them to do."""


class WorkerError(RuntimeError):
    """Worker processes that died, or could not do their part, and what may help."""


class Errand(Protocol):
    """What a worker is asked to do for a row of clients; it goes there pickled."""

    def done(self, population: Population, start: Start | None) -> object:
        """What comes of it, which is pickled, too.

        Args:
            population: that the clients are of.
            start: where they begin, if they are to train.

        Raises:
            TaskError: the task stands in the way; says what to do.
        """


@dataclass(frozen=True, slots=True)
class TrainingErrand:
    """Clients that follow one another in a cohort, from the rank `first` on, are to train."""

    first: int
    orders: Sequence[Order]

    def done(self, population: Population, start: Start | None) -> CohortUpdate:
        """What they release, added up, where any process can read it."""
        assert start is not None
        update = population.trained(self.first, self.orders, start)
        update.sum.move("cpu")
        return update


class Worker(Protocol):
    """Another process, which does one errand after another.

    Attributes:
        name: for people: "Worker 2 of 8".
    """

    name: str

    def ask(self, start: Any, errand: bytes) -> None:
        """Send it on an errand; one that is dead is found out when it does not answer.

        Args:
            start: as its crew hands it over.
            errand: pickled.
        """

    def answer(self) -> bytes | None:
        """What `answer_to` made of the oldest errand that nothing was heard of; None: it has died."""

    def kill(self) -> str:
        """End it, and say how it ended."""


class Crew(Population, ABC):
    """A population with workers. A context manager, with which they end.

    Args:
        task, config, train: see `Population`; they go to every worker.
        placement: that asked for workers.
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
        """End the workers, now: they hold nothing that is not somewhere else."""

    @abstractmethod
    def _ready(self) -> Sequence[Worker]:
        """Those that wait for errands, at least one."""

    @abstractmethod
    def _instead_of(self, dead: Sequence[Worker]) -> Sequence[Worker]:
        """Who does what these were asked, who were ended; at least one."""

    @abstractmethod
    def _handed(self, start: Start | None) -> Any:
        """A start, once for all workers."""

    def warn_of_messages(self, why: str) -> None:
        """Say that no worker is of use."""
        log.warning(USELESS, self._placement.words, why)

    def trained(self, first: int, orders: Sequence[Order], start: Start) -> CohortUpdate:
        """What `Population` trains, each worker as many clients as the next, or one more or less.

        Raises:
            WorkerError: a worker died, and so did the one that took its clients; or it could not train.
        """

        def training(row: range) -> TrainingErrand:
            return TrainingErrand(first + row.start, orders[row.start : row.stop])

        update = CohortUpdate(apart={} if start.apart else None)
        for part in self._divided(len(orders), training, start):
            assert isinstance(part, CohortUpdate)
            update.join(part)
        return update

    def _divided(self, clients: int, errand: Callable[[range], Errand], start: Start | None = None) -> Iterator[object]:
        """What comes of errands, one for each worker and a row of so many clients, in any order.

        Raises:
            ConfigError, WorkerError: see `trained`; the workers are ended.
        """
        try:
            workers = self._ready()
            cuts = [clients * number // len(workers) for number in range(len(workers) + 1)]
            errands = [pickle.dumps(errand(range(*row))) for row in pairwise(cuts)]
            handed = self._handed(start)
            lost = yield from self._heard(list(zip(workers, errands, strict=True)), handed)
            if lost:
                yield from self._heard_of_others(lost, handed, len(workers))
        except BaseException:
            self.close()  # whatever they were asked, nobody waits for it any more
            raise

    def _heard_of_others(self, lost: Sequence[_Asked], handed: Any, workers: int) -> Iterator[object]:
        """What comes of errands whose workers have died, each from another worker."""
        ends = {worker: worker.kill() for worker, _ in lost}
        for worker, end in ends.items():
            log.warning("%s died (%s); another one takes its clients.", worker.name, end)
        others = self._instead_of(list(ends))
        again = [(other, errand) for other, (_, errand) in zip(cycle(others), lost, strict=False)]
        for other, errand in (yield from self._heard(again, handed)):
            first = next(worker for worker, its in lost if its is errand)
            raise WorkerError(
                f"{first.name} died ({ends[first]}), and so did the one that took its clients ({other.kill()}). If "
                f"memory was short, choose fewer workers; there were {workers}."
            )

    def _heard(self, asked: Sequence[_Asked], handed: Any) -> Generator[object, None, list[_Asked]]:
        """What comes of errands; returns those whose workers have died."""
        for worker, errand in asked:
            worker.ask(handed, errand)
        lost = []
        for worker, errand in asked:
            answer = worker.answer()
            if answer is None:
                lost.append((worker, errand))
            else:
                yield _unpacked(answer)
        return lost


_Asked = tuple[Worker, bytes]
"""A worker, and the errand on which it was sent."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an errand could not be done: a traceback."""

    words: str


def packed(crew: Placement, everything: object) -> bytes:
    """Whatever a script has defined, by value, so that a process which does not run this script can have it.

    Args:
        crew: that asked for this process.
        everything: what it needs.

    Raises:
        ConfigError: it cannot go to another process.
    """
    from ray import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(everything)
    except Exception as error:
        remedy = "leave ray-address open" if crew.ray_address else "choose workers 1"
        raise ConfigError([f"{crew.words}, but the task cannot go to another process ({error}); {remedy}."]) from error


def answer_to(population: Population, start: bytes, errand: bytes) -> bytes:
    """What a worker answers to an errand that it was sent on, both pickled."""
    try:
        return pickle.dumps(pickle.loads(errand).done(population, pickle.loads(start)))
    except TaskError as error:
        return pickle.dumps(error)
    except Exception:
        return pickle.dumps(_Failure(traceback.format_exc()))


def _unpacked(answer: bytes) -> object:
    """What came of an errand."""
    found = pickle.loads(answer)
    if isinstance(found, _Failure):
        raise WorkerError(f"A worker could not do its part:\n{found.words}")
    if isinstance(found, TaskError):
        problem = ConfigError([str(found)])
        for note in getattr(found, "__notes__", []):
            problem.add_note(note)
        raise problem
    return found
