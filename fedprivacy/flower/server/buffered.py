"""Asynchronous rounds of a population: clients are charged and trained when they are dispatched, and averaged later.

FedBuff (Nguyen et al. 2022): the server moves its model by the mean of the differences in its buffer, where a staler
difference counts less. `fedprivacy.participation.Buffer` decides when each client is dispatched and when it answers.

Formal guarantee: see `fedprivacy.runs.accountant`. A round's attempt is charged for the clients that it dispatches,
before any of them trains. The charge stands even if the update comes many steps later, or never. A client is dispatched
at most once in a round, so that no two of its trainings share a charge or a draw of noise. Keeping, weighting and
averaging updates is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.one_round import OpenRound, RoundOutcome, Settlement
from fedprivacy.flower.server.registry import Eligible
from fedprivacy.flower.server.rounds import RoundSchedule, Transport
from fedprivacy.flower.server.together import one_for_all, shaped
from fedprivacy.flower.server.underway import Pending, Underway
from fedprivacy.flower.server.wrapped import WrappedStrategy, averages
from fedprivacy.participation import DROPPED_OUT, Buffer, Course, Dispatch, discount
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.rounds import Buffered


def check_known_to_average(strategy: Strategy) -> None:
    """Refuse a strategy that may look at each update: it gets a single one, the mean of the buffer.

    Raises:
        ConfigError: the strategy is not known to need only the average.
    """
    if not averages(strategy):
        raise ConfigError(
            [
                f"the strategy is {type(strategy).__name__}, which may look at each update, and an asynchronous round "
                "(buffer-size) gives it their mean; wrap one that is known to average, such as Flower's own FedAvg or "
                "FedAdam, or leave buffer-size and concurrency open."
            ]
        )


class Delivered(NamedTuple):
    """One update in the buffer: the difference between a client's last and first model, flat, shape [d]."""

    client_id: str
    difference: NDArray[np.floating[Any]]
    weight: float
    staleness: int


@dataclass
class BufferedSchedule(RoundSchedule):
    """Rounds that do not wait for their clients; for simulated populations only.

    Attributes:
        wrapped: the strategy.
        accounts: the books of the run.
        buffer: the server's buffer.
        names: names of the trained parameters, in the order of flat vectors.
        underway: the clients that train between the last settled round and the next.
    """

    wrapped: WrappedStrategy
    accounts: RunAccounts
    buffer: Buffer
    names: Sequence[str]
    underway: Underway = field(default_factory=Underway)

    def choose(  # noqa: PLR0917 - what a round begins with
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, allowed: Eligible, again: bool, at: float
    ) -> tuple[OpenRound, Mapping[int, Message]]:
        """Choose the clients that the simulated clock dispatches until the next step.

        Raises:
            ValueError: the wrapped strategy leaves out some of them.
        """
        steps = self.accounts.steps_ahead(attempt, allowed, again=again)
        course = self.buffer.course(attempt.round, steps, self.underway.training, at)
        written = self._written(attempt, arrays, config, course)
        dispatched, registry = {dispatch.client_id for dispatch in course.dispatched}, self.wrapped.registry
        clients = {n: client for n in written if (client := registry[n]).client_id in dispatched}
        began, template = inf if course.empty else at, next(iter(written.values()), None)
        return OpenRound(attempt, arrays, len(allowed), clients, template, began=began, course=course), written

    def arrived(self, outcome: RoundOutcome) -> RoundOutcome:
        """Return the updates that are due now, from this round's training or earlier; all other charges stay open."""
        opened, course = outcome.opened, outcome.opened.course
        assert course is not None
        pending = {**self.underway.pending, **self._kept(outcome)}
        charged = [dispatch for dispatch in course.over if dispatch.client_id in pending]
        over = [(dispatch, pending.pop(dispatch.client_id)) for dispatch in charged]
        self.underway = Underway(course.training, pending)
        delivered = [
            Delivered(dispatch.client_id, each.difference, each.weight, dispatch.staleness(opened.attempt.round))
            for dispatch, each in over
            if each.difference is not None
        ]
        failures = dict(sorted((dispatch.client_id, each.failure) for dispatch, each in over if each.failure))
        return replace(
            outcome,
            updates=delivered,
            participants=tuple(sorted(each.client_id for each in delivered)),
            failures=failures,
            settlements=_settlements(over),
            missed={client_id for client_id, reason in failures.items() if reason == DROPPED_OUT},
            ended=course.ended,
            buffered=self._told(opened, delivered),
        )

    def given(self, outcome: RoundOutcome, transport: Transport) -> list[Message]:
        """Return the mean difference, as one update from the model that was sent.

        Staleness discounts an update in the sum, but not in the weight by which the sum is divided.
        """
        if not outcome.participants:
            return []
        opened, delivered = outcome.opened, outcome.updates
        moved = _flat(opened.arrays, self.names).astype(np.float64)
        weight = fsum(each.weight for each in delivered)
        for each in delivered:
            moved += (discount(each.staleness) * each.weight / weight) * each.difference.astype(np.float64)
        return [one_for_all(opened, shaped(moved, self.names, opened.arrays), weight, self.wrapped.weighted_by)]

    def _written(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, course: Course
    ) -> dict[int, Message]:
        """Return the wrapped strategy's messages to the clients dispatched or answering in a round, by node id.

        The strategy is called even if no client is dispatched: some strategies remember the model that they send.
        """
        concerned = {dispatch.client_id for dispatch in (*course.dispatched, *course.answered)}
        written = self.wrapped.chosen(attempt.round, arrays, config, concerned)
        asked = {client.client_id for client in self.wrapped.clients(written).values()}
        if asked != concerned:
            raise ValueError(
                f"The wrapped strategy asks {len(asked)} of {len(concerned)} clients; in asynchronous rounds the "
                "simulated clock chooses: let its fraction_train, min_train_nodes and min_available_nodes be 1."
            )
        return written

    def _kept(self, outcome: RoundOutcome) -> dict[str, Pending]:
        """Return the pending updates of the clients charged in a round, by client_id."""
        opened, update = outcome.opened, outcome.updates
        start, apart = _flat(opened.arrays, self.names), update.apart or {}
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

    def _told(self, opened: OpenRound, delivered: Sequence[Delivered]) -> Buffered:
        """Describe the clients and the staleness behind a round's step."""
        stale = [each.staleness for each in delivered]
        return Buffered(
            dispatched=tuple(sorted(client.client_id for client in opened.clients.values())),
            training=len(self.underway.training),
            mean_staleness=sum(stale) / len(stale) if stale else None,
            max_staleness=max(stale, default=None),
        )


def _settlements(over: Sequence[tuple[Dispatch, Pending]]) -> list[Settlement]:
    """Settle the trainings that have ended, in the order of the attempts that were charged for them."""
    trained: dict[Attempt, dict[str, float]] = {}
    for dispatch, each in over:
        if each.clipping_norm is not None:
            trained.setdefault(each.attempt, {})[dispatch.client_id] = each.clipping_norm
    each_sorted = ((attempt, dict(sorted(norms.items()))) for attempt, norms in sorted(trained.items()))
    return [Settlement(attempt, dict.fromkeys(norms), norms) for attempt, norms in each_sorted]


def _flat(model: Mapping[str, Array], names: Sequence[str]) -> NDArray[np.floating[Any]]:
    """The named parameters of a model in one vector, shape [d]."""
    return np.concatenate([model[name].numpy().ravel() for name in names])
