"""Asynchronous rounds of a population: clients are charged and trained when they are dispatched, and averaged later.

FedBuff (Nguyen et al. 2022): the server steps from the model that it has by the mean of the differences that its buffer
holds, each less the staler it is. When which client is dispatched and answers is `fedprivacy.participation.Buffer`'s.

Formal guarantee: see `fedprivacy.runs.accountant`. A round's attempt is charged for whom it dispatches, before anybody
trains, and whatever becomes of it: an update that comes many steps later, or not at all, has cost what it cost. A
client is dispatched at most once in a round, so that no two of its trainings share a charge or a draw of noise. Kept,
weighted and averaged, updates are post-processed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, inf
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedprivacy._support.spans import spanned
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.cohorts import CohortRounds, OpenCohort, averages, shaped
from fedprivacy.flower.server.control import ServerControl
from fedprivacy.flower.server.noisy_average import UserLevelRounds
from fedprivacy.flower.server.replies import RoundOutcome
from fedprivacy.flower.server.underway import Pending, Underway
from fedprivacy.flower.simulated.population import CohortUpdate
from fedprivacy.participation import DROPPED_OUT, Buffer, Course, Dispatch, discount
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.training.evaluation import NoisySums
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.rounds import Buffered


def check_known_to_average(strategy: Strategy) -> None:
    """Refuse a strategy that may look at each update: it is given one, which stands for a buffer of them.

    Raises:
        ConfigError: it is one.
    """
    if not averages(strategy):
        raise ConfigError(
            [
                f"the strategy is {type(strategy).__name__}, which may look at each update, and an asynchronous round "
                "(buffer-size) gives it their mean; wrap one that is known to average, such as Flower's own FedAvg or "
                "FedAdam, or leave buffer-size and concurrency open."
            ]
        )


@dataclass(frozen=True)
class OpenBuffer(OpenCohort):
    """An asynchronous round, when whom it dispatches may be trained: they are charged, and the orders are theirs.

    Attributes:
        course: what will happen in it.
    """

    course: Course = field(default_factory=lambda: Course((), (), (), (), 0.0))

    @property
    def ends_the_run(self) -> bool:
        """Whether there is nothing more to do; while somebody trains, there is."""
        return self.course.empty


class Delivered(NamedTuple):
    """One update in the buffer: how far a client came from the model that it began with, flat, shape [d]."""

    client_id: str
    difference: NDArray[np.floating[Any]]
    weight: float
    staleness: int


@dataclass(frozen=True)
class BufferOutcome(RoundOutcome):
    """What became of an asynchronous round.

    Attributes:
        over: the trainings that have ended in it, with what became of each, in the order in which they did.
        training: how many go on.
    """

    over: Sequence[tuple[Dispatch, Pending]] = ()
    training: int = 0

    @cached_property
    def delivered(self) -> list[Delivered]:
        """What its step takes, in the order in which it came."""
        number = self.opened.attempt.round
        return [
            Delivered(dispatch.client_id, each.difference, each.weight, dispatch.staleness(number))
            for dispatch, each in self.over
            if each.difference is not None
        ]

    @property
    def participants(self) -> tuple[str, ...]:
        """Clients whose updates are averaged, sorted."""
        return tuple(sorted(each.client_id for each in self.delivered))

    @cached_property
    def failures(self) -> dict[str, str]:
        """Clients whose training has ended without a usable update, with a short constant reason, sorted."""
        return dict(sorted((d.client_id, each.failure) for d, each in self.over if each.failure))

    @property
    def missed(self) -> set[str]:
        """Clients that the simulation let go away."""
        return {client_id for client_id, reason in self.failures.items() if reason == DROPPED_OUT}

    @property
    def buffered(self) -> Buffered:
        """What its step was made of."""
        stale = [each.staleness for each in self.delivered]
        return Buffered(
            dispatched=tuple(sorted(client.client_id for client in self.opened.clients.values())),
            training=self.training,
            mean_staleness=sum(stale) / len(stale) if stale else None,
            max_staleness=max(stale, default=None),
        )


@dataclass
class BufferedRounds:
    """Rounds that do not wait for their clients; see `fedprivacy.flower.server.rounds.Rounds`, whose steps these are.

    Attributes:
        cohorts: which train whom a round dispatches.
        accounts: the books of the run.
        buffer: of the server.
        underway: who trains between the last round that was settled and the next.
    """

    cohorts: CohortRounds
    accounts: RunAccounts
    buffer: Buffer
    underway: Underway = field(default_factory=Underway)
    user_level: UserLevelRounds | None = None

    @property
    def control(self) -> ServerControl:
        """Nothing: an algorithm with a server half needs rounds that end together."""
        return self.cohorts.control

    @spanned("opening the round")
    def open(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, *, again: bool, at: float = 0.0
    ) -> OpenBuffer:
        """Find out who is dispatched until the next step, and reserve what each may spend; see `Rounds.open`.

        Raises:
            ValueError: the wrapped strategy chooses some clients itself.
        """
        self.cohorts.population.check(arrays)
        eligible = self.accounts.open_to(attempt, again=again)
        steps = self.accounts.steps_ahead(attempt, eligible, again=again)
        course = self.buffer.course(attempt.round, steps, self.underway.training, at)
        messages = self._messages(attempt, arrays, config, course)
        registry = self.cohorts.rounds.registry
        dispatched = {dispatch.client_id: dispatch for dispatch in course.dispatched}
        clients = {n: client for n in messages if (client := registry[n]).client_id in dispatched}
        granted = self.accounts.reserve(attempt, clients.values(), again=again)
        training = {client_id: steps for client_id, steps in granted.items() if dispatched[client_id].answers}
        return OpenBuffer(
            attempt,
            arrays,
            eligible=len(eligible),
            clients={n: client for n, client in clients.items() if client.client_id in granted},
            began=inf if course.empty else at,
            orders=self.cohorts.orders(clients, training),
            template=next(iter(messages.values()), None),
            apart=True,
            course=course,
        )

    def _messages(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, course: Course
    ) -> dict[int, Message]:
        """What the wrapped strategy writes to all that have to do with a round, by node id.

        It is asked where nobody is dispatched, too: some strategies remember the model that they send.
        """
        concerned = {dispatch.client_id for dispatch in (*course.dispatched, *course.answered)}
        rounds = self.cohorts.rounds
        messages = rounds.chosen(attempt.round, arrays, config, concerned)
        asked = {rounds.registry[node_id].client_id for node_id in messages}
        if asked != concerned:
            raise ValueError(
                f"The wrapped strategy asks {len(asked)} of {len(concerned)} clients; in asynchronous rounds the "
                "simulated clock chooses: let its fraction_train, min_train_nodes and min_available_nodes be 1."
            )
        return messages

    def send(self, opened: OpenBuffer) -> CohortUpdate:
        """Let those train who are dispatched: their updates are kept until they would come."""
        return self.cohorts.send(opened)

    @spanned("settling the round")
    def settle(self, opened: OpenBuffer, update: CohortUpdate) -> BufferOutcome:
        """Commit what was spent for the answers that have come; all other charges stay open."""
        pending, course = {**self.underway.pending, **self._kept(opened, update)}, opened.course
        charged = [dispatch for dispatch in course.over if dispatch.client_id in pending]
        over = [(dispatch, pending.pop(dispatch.client_id)) for dispatch in charged]
        trained: dict[Attempt, dict[str, float]] = {}
        for dispatch, each in over:
            if each.clipping_norm is not None:
                trained.setdefault(each.attempt, {})[dispatch.client_id] = each.clipping_norm
        for attempt, clipping_norms in sorted(trained.items()):
            self.accounts.settle_trained(attempt, dict(sorted(clipping_norms.items())))
        self.underway = Underway(course.training, pending)
        return BufferOutcome(opened, ended=course.ended, over=over, training=len(course.training))

    def evaluated(self, outcome: BufferOutcome) -> dict[str, NoisySums]:
        """Nobody evaluates."""
        return {}

    @spanned("averaging")
    def average(self, outcome: BufferOutcome) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy step by the mean difference, as if it were one update from the model that it sent.

        A stale update counts less in the sum, and as much as any other in what the sum is divided by.

        Raises:
            RoundFailedError: what it makes of that is not finite.
        """
        if not outcome.participants:  # as before the first round
            return None, None
        opened, names = outcome.opened, self.cohorts.population.names
        assert isinstance(opened, OpenBuffer)
        moved = _flat(opened.arrays, names).astype(np.float64)
        weight = fsum(each.weight for each in outcome.delivered)
        for each in outcome.delivered:
            moved += (discount(each.staleness) * each.weight / weight) * each.difference.astype(np.float64)
        return self.cohorts.aggregated(opened, shaped(moved, names, opened.arrays), weight)

    def _kept(self, opened: OpenBuffer, update: CohortUpdate) -> dict[str, Pending]:
        """What the clients that a round was charged for will send, by client_id."""
        start, apart = _flat(opened.arrays, self.cohorts.population.names), update.apart or {}
        gone = Pending(opened.attempt, 0.0, None, None, DROPPED_OUT)
        return {client.client_id: gone for client in opened.clients.values()} | {
            order.client_id: Pending(
                opened.attempt,
                order.weight,
                update.clipping_norms.get(order.client_id),
                apart[order.client_id].numpy() - start if order.client_id in apart else None,
                update.failures.get(order.client_id, ""),
            )
            for order in opened.orders
        }


def _flat(model: Mapping[str, Array], names: Sequence[str]) -> NDArray[np.floating[Any]]:
    """The named parameters of a model in one vector, shape [d]."""
    return np.concatenate([model[name].numpy().ravel() for name in names])
