"""Asynchronous rounds: many clients train side by side, and the server steps as soon as its buffer is full (FedBuff).

Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation". A round is what happens between two
steps of the server: whoever is dispatched in it trains from the model that the step before has left, and its answer may
be one of the next step's, or of a later one's. Whoever is done is replaced at once; and is not dispatched again before
the next step, so that a client has at most one training in any round: what it is charged for has one name, and so has
the noise.

All of it is a function of the run's key, the round, the clients' ids and public numbers, and of no update: a client
whose training fails takes its place in the buffer, and leaves it empty.

Formal guarantee: none. Each dispatch is a release of its own, charged when it is made; see the package.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from fedprivacy._support.settings import WHOLE, Known, LeftOpen, SettingsGroup, key_of, setting
from fedprivacy.participation.draws import DrawPurpose
from fedprivacy.participation.participation import Participation


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One training of one client.

    Attributes:
        client_id: whose.
        round: in which it began, with the model that this round began with.
        ends: when, in simulated seconds.
        answers: whether its update comes then; else the client is known then to have gone away.
    """

    client_id: str
    round: int
    ends: float
    answers: bool

    def staleness(self, round: int) -> int:
        """How many steps the server has made meanwhile, when it takes the update in this round."""
        return round - self.round


def discount(staleness: int) -> float:
    """What a stale update counts, compared with a fresh one."""
    return 1.0 / math.sqrt(1.0 + staleness)


@dataclass(frozen=True, slots=True)
class Course:
    """What happens in a round.

    Attributes:
        dispatched: who began to train in it.
        answered: whose updates its step takes, in the order in which they came, from this round or others before.
        gone: who is known by now to have gone away instead.
        training: who still trains at its end.
        ended: when, in simulated seconds.
    """

    dispatched: tuple[Dispatch, ...]
    answered: tuple[Dispatch, ...]
    gone: tuple[Dispatch, ...]
    training: tuple[Dispatch, ...]
    ended: float

    @property
    def over(self) -> tuple[Dispatch, ...]:
        """Whose training has ended in it, one way or the other."""
        return self.answered + self.gone

    @property
    def empty(self) -> bool:
        """Whether nothing happens in it: nobody trains, and nobody who could is ever there again."""
        return not (self.dispatched or self.answered or self.gone)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Keeps so many clients training, and steps with every so many answers.

    Attributes:
        participation: how fast clients are, when they are there, and who goes away; its cohort, and what else is about
            rounds that end together, is not looked at.
        concurrency: how many train at any moment, as long as there are as many to dispatch.
        size: how many answers make a step. Where nobody is left who could fill the buffer, fewer do.
    """

    participation: Participation
    concurrency: int
    size: int

    def course(self, round: int, steps: Mapping[str, int], training: Sequence[Dispatch], at: float) -> Course:
        """The course of a round.

        Args:
            round: its number, from 1.
            steps: that each client would take, of those that may be dispatched.
            training: who trains when it begins.
            at: when the round before was over, in simulated seconds.
        """
        going = _Going(self, round, steps, list(training), at)
        going.dispatch()
        while len(going.answered) < self.size and going.goes_on():
            if len(going.answered) < self.size:  # whoever completes a step is replaced after it, from the new model
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
    """A round, as far as it has come."""

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
        """Clients in this round's random order; its first are whom a round that ends together would ask."""
        drawn = self.buffer.participation.draws.uniforms(DrawPurpose.COHORT, client_ids, self.round)
        return (client_ids[place] for place in np.argsort(drawn, kind="stable").tolist())

    @property
    def free(self) -> int:
        """How many more may train."""
        return self.buffer.concurrency - len(self.training)

    def dispatch(self) -> None:
        """Let those train whose turn it is, of those that are there."""
        participation = self.buffer.participation
        there = (client_id for client_id in self.waiting if participation.there(client_id, self.now))
        for client_id in list(islice(there, self.free)):
            del self.waiting[client_id]
            ends = participation.ends(client_id, self.round, self.steps[client_id], self.now)
            self.dispatched.append(Dispatch(client_id, self.round, *ends))
            self.training.append(self.dispatched[-1])

    def goes_on(self) -> bool:
        """Wait until somebody is done, or comes whom there is room for; false: nobody will."""
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
        """In which order answers are taken that come at the same moment."""
        draws = self.buffer.participation.draws
        return dispatch.ends, draws.uniform(DrawPurpose.TIE, dispatch.client_id, dispatch.round)

    def _is_done(self, among: list[Dispatch], done: Collection[Dispatch]) -> None:
        among += done
        for dispatch in done:
            self.training.remove(dispatch)


ASYNCHRONOUS = ("concurrency", "buffer_size")
"""The settings that make rounds asynchronous."""


@dataclass(frozen=True, kw_only=True)
class AsynchronySettings(SettingsGroup):
    """How many clients train at any moment, and how many updates make a step of the server."""

    concurrency: int | None = setting(
        "Simulated: how many clients train at any moment in asynchronous rounds (FedBuff), which need buffer-size.",
        None,
        bounds=WHOLE,
    )
    buffer_size: int | None = setting(
        "Simulated: how many updates make a step of the server in asynchronous rounds, where whoever is done is "
        "replaced at once, and a stale update counts less. Left open, with concurrency: rounds are synchronous.",
        None,
        bounds=WHOLE,
    )

    @classmethod
    def problems(cls, known: Known) -> list[str]:
        """What rounds in which clients are replaced one by one cannot be, or do."""
        return known.problems(
            _only_one_given,
            _more_than_all,
            LeftOpen(
                ("fraction_train", "cohort_size", "cohort_sampling", "over_selection", "deadline"),
                "asynchronous rounds (buffer-size, concurrency) replace clients one by one, as they are done; leave it "
                "open.",
                beside="asynchronous",
            ),
            _unable,
        )


def _only_one_given(concurrency: int | None, buffer_size: int | None) -> Iterator[str]:
    if (concurrency is None) != (buffer_size is None):
        given = "buffer-size" if concurrency is None else "concurrency"
        other, number = ("concurrency", buffer_size) if concurrency is None else ("buffer-size", concurrency)
        yield f"{given} is {number} and {other} is open; asynchronous rounds need both, others neither."


def _more_than_all(concurrency: int | None, buffer_size: int | None, clients: int) -> Iterator[str]:
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
