"""Asynchronous rounds: many clients train side by side, and the server steps as soon as its buffer is full (FedBuff).

Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation". A round lasts from one step of the
server to the next: a client that is dispatched in it trains from the model after the last step, and its answer enters
the next step, or a later one. A client that is done is replaced at once, but not dispatched again before the next step:
a client has at most one training in a round, so that its charge and its noise have unique names.

All of it is a function of the run's key, the round, the clients' ids and public numbers, and of no update: a client
whose training fails occupies a place in the buffer, and leaves it empty.

Formal guarantee: none. Each dispatch is a separate release, charged when it is made; see the package.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from fedprivacy._support.settings import WHOLE, KnownSettings, LeftOpen, SettingsGroup, key_of, setting
from fedprivacy.participation.draws import DrawPurpose
from fedprivacy.participation.participation import Participation


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One training of one client.

    Attributes:
        client_id: the client.
        round: round in which it began, with the model at this round's beginning.
        ends: time of its end, in simulated seconds.
        answers: whether its update arrives then; otherwise the client is then known to have left.
    """

    client_id: str
    round: int
    ends: float
    answers: bool

    def staleness(self, round: int) -> int:
        """Return the number of steps that the server has made meanwhile, when it takes the update in this round."""
        return round - self.round


def discount(staleness: int) -> float:
    """Return the weight of a stale update relative to a fresh one."""
    return 1.0 / math.sqrt(1.0 + staleness)


@dataclass(frozen=True, slots=True)
class Course:
    """Events of a round.

    Attributes:
        dispatched: trainings that began in it.
        answered: trainings whose updates its step takes, in the order of arrival, from this or earlier rounds.
        gone: trainings whose clients are known by now to have left instead.
        training: trainings in progress at its end.
        ended: time of its end, in simulated seconds.
    """

    dispatched: tuple[Dispatch, ...]
    answered: tuple[Dispatch, ...]
    gone: tuple[Dispatch, ...]
    training: tuple[Dispatch, ...]
    ended: float

    @property
    def over(self) -> tuple[Dispatch, ...]:
        """Trainings that ended in it, with or without an answer."""
        return self.answered + self.gone

    @property
    def empty(self) -> bool:
        """True if nothing happens: nobody trains, and nobody who could is ever available again."""
        return not (self.dispatched or self.answered or self.gone)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Buffer that keeps a number of clients training, and steps with every so many answers.

    Attributes:
        participation: speeds, availability and drop-outs of clients; its cohort, and everything else about rounds that
            end together, is ignored.
        concurrency: number of clients that train at any moment, as long as there are enough to dispatch.
        size: number of answers in a step. If no client is left to fill the buffer, fewer suffice.
    """

    participation: Participation
    concurrency: int
    size: int

    def course(self, round: int, steps: Mapping[str, int], training: Sequence[Dispatch], at: float) -> Course:
        """Compute the course of a round.

        Args:
            round: number of the round, from 1.
            steps: number of steps of each client that may be dispatched.
            training: trainings in progress at its beginning.
            at: end of the round before, in simulated seconds.
        """
        going = _Going(self, round, steps, list(training), at)
        going.dispatch()
        while len(going.answered) < self.size and going.goes_on():
            # The client that completes a step is replaced after it, from the new model.
            if len(going.answered) < self.size:
                going.dispatch()
        return Course(
            dispatched=tuple(going.dispatched),
            answered=tuple(going.answered),
            gone=tuple(going.gone),
            training=tuple(going.training),
            ended=going.now,
        )


@dataclass(slots=True)
class _Going:
    """A round in progress."""

    buffer: Buffer
    round: int
    steps: Mapping[str, int]
    training: list[Dispatch]
    now: float
    dispatched: list[Dispatch] = field(default_factory=list)
    answered: list[Dispatch] = field(default_factory=list)
    gone: list[Dispatch] = field(default_factory=list)
    waiting: dict[str, None] = field(init=False)

    def __post_init__(self) -> None:
        busy = {dispatch.client_id for dispatch in self.training}
        self.waiting = dict.fromkeys(self._in_turn([client_id for client_id in self.steps if client_id not in busy]))

    def _in_turn(self, client_ids: Sequence[str]) -> Iterable[str]:
        """Return clients in this round's random order; a synchronous round would ask the first ones."""
        drawn = self.buffer.participation.draws.uniforms(DrawPurpose.COHORT, client_ids, self.round)
        return (client_ids[place] for place in np.argsort(drawn, kind="stable").tolist())

    @property
    def free(self) -> int:
        """Number of further clients that may train."""
        return self.buffer.concurrency - len(self.training)

    def dispatch(self) -> None:
        """Dispatch the clients whose turn it is, of those that are available."""
        participation = self.buffer.participation
        there = (client_id for client_id in self.waiting if participation.there(client_id, self.now))
        for client_id in list(islice(there, self.free)):
            del self.waiting[client_id]
            ends = participation.ends(client_id, self.round, self.steps[client_id], self.now)
            self.dispatched.append(Dispatch(client_id, self.round, *ends))
            self.training.append(self.dispatched[-1])

    def goes_on(self) -> bool:
        """Wait until a training ends, or a client arrives and has room; return False if that never happens."""
        moment = min((dispatch.ends for dispatch in self.training), default=math.inf)
        if self.free:
            coming = (self.buffer.participation.availability.next(c, self.now)[0] for c in self.waiting)
            moment = min(moment, min(coming, default=math.inf))
        if math.isinf(moment):
            return False
        self.now = max(self.now, moment)
        over = [dispatch for dispatch in self.training if dispatch.ends <= self.now]
        answering = sorted((dispatch for dispatch in over if dispatch.answers), key=self._turn)
        self._is_done(self.answered, answering[: self.buffer.size - len(self.answered)])
        self._is_done(self.gone, [dispatch for dispatch in over if not dispatch.answers])
        return True

    def _turn(self, dispatch: Dispatch) -> tuple[float, float]:
        """Return the sort key of answers that arrive at the same moment."""
        draws = self.buffer.participation.draws
        return dispatch.ends, draws.uniform(DrawPurpose.TIE, dispatch.client_id, dispatch.round)

    def _is_done(self, ended: list[Dispatch], done: Collection[Dispatch]) -> None:
        ended += done
        for dispatch in done:
            self.training.remove(dispatch)


ASYNCHRONOUS = ("concurrency", "buffer_size")
"""The settings that make rounds asynchronous."""


@dataclass(frozen=True, kw_only=True)
class AsynchronySettings(SettingsGroup, question="Does the server wait for all?"):
    """Number of clients that train at any moment, and number of updates that make a step of the server."""

    concurrency: int | None = setting(
        "Simulated: how many clients train at any moment in asynchronous rounds (FedBuff), which need buffer-size.",
        None,
        bounds=WHOLE,
    )
    buffer_size: int | None = setting(
        "Simulated: number of updates that make a step of the server in asynchronous rounds. A client that is done is "
        "replaced at once, and a stale update counts less. Left open, with concurrency: rounds are synchronous.",
        None,
        bounds=WHOLE,
    )

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find settings that asynchronous rounds cannot obey."""
        return known.problems(
            _only_one_given,
            _more_than_all,
            LeftOpen(
                ("fraction_train", "cohort_size", "cohort_sampling", "over_selection", "deadline"),
                "asynchronous rounds (buffer-size, concurrency) replace clients one by one, as they are done; leave it "
                "open.",
                conflict="asynchronous",
            ),
            _unable,
        )


def _only_one_given(concurrency: int | None, buffer_size: int | None) -> Iterator[str]:
    if (concurrency is None) != (buffer_size is None):
        given = "buffer-size" if concurrency is None else "concurrency"
        other, number = ("concurrency", buffer_size) if concurrency is None else ("buffer-size", concurrency)
        yield f"{given} is {number} and {other} is open; asynchronous rounds need both, others neither."


def _more_than_all(clients: int, concurrency: int | None = None, buffer_size: int | None = None) -> Iterator[str]:
    for name, number in {"concurrency": concurrency, "buffer_size": buffer_size}.items():
        if number is not None and number > clients:
            yield f"{key_of(name)} is {number}, and clients is {clients}; give at most as many."


def _unable(asynchronous: bool, local_evaluation: int, privacy: bool, user_level: bool) -> Iterator[str]:
    unable = {
        "local-evaluation is on": bool(local_evaluation),
        "privacy is off": not privacy,
        "there is user-level noise": user_level,
    }
    for what, given in unable.items():
        if asynchronous and given:
            yield f"{what}, which asynchronous rounds cannot do; leave that, or buffer-size and concurrency, open."
