"""The steps of a round: open it and charge its possible cost, send, settle the real cost, average.

The rounds of two runs differ in two things. A `Transport` (`fedprivacy.flower.server.transports`) asks the clients: by
Flower's messages, or all together as a simulated population, in this process, in others or on a cluster. A
`RoundSchedule` decides which updates are averaged in a round: those of the clients that the wrapped strategy chose for
this round (`StrategyChooses`); or a Poisson sample of all clients, in one noisy average (`PoissonSampled`).

The noisy average is user-level central DP (`UserLevelReleases`). The wrapped strategy never sees a client's update
then. It gets the global model plus the noisy average as the one update of the round, with weight 1, so that everything
it computes from that is post-processing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from fedprivacy._support.failpoints import reach
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.accounts import Books
from fedprivacy.flower.server.checkpoint import ServerControl, flat, shaped_as
from fedprivacy.flower.server.nodes import Eligible
from fedprivacy.flower.server.one_round import OpenRound, RoundOutcome
from fedprivacy.flower.server.wrapped import WrappedStrategy
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.runs.plans.noise import UserLevelNoise
from fedprivacy.runs.user_level_book import UserLevelBook
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.runs import Phase, PhaseObserver, Stage
from fedprivacy.values.spent import UserLevelSpent

OVER = "the next round does not fit the user-level budget"
"""The reason given when a run ends on its user-level budget."""


class RoundFailedError(RuntimeError):
    """A round without one usable update: going on would spend privacy for nothing."""


class Transport(Protocol):
    """A way to ask the clients of a run."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order of flat vectors."""

    def admit(self, arrays: ArrayRecord) -> None:
        """Take in clients that have come since; refuse a global model that cannot be sent."""

    def open(self, opened: OpenRound, written: Mapping[int, Message], *, again: bool) -> OpenRound:
        """Charge the chosen clients, and prepare their messages or orders.

        Args:
            opened: the round, with the chosen clients.
            written: the wrapped strategy's messages, by node id.
            again: whether this attempt was granted before, by a run that was stopped since.
        """

    def ask(self, opened: OpenRound) -> Any:
        """Ask, and wait for the answers."""

    def receive(self, opened: OpenRound, answers: Any) -> RoundOutcome:
        """Return the round's outcome: the updates, and the charges that the answers prove."""

    def as_messages(self, outcome: RoundOutcome, weighted_by: str) -> list[Message]:
        """The updates as messages for a strategy that weighs them by the metric `weighted_by`."""

    def mean(self, outcome: RoundOutcome) -> tuple[Tensor, Mapping[str, float]]:
        """The weighted average of the updates, flat, and their weights by client_id."""


class RoundSchedule(ABC):
    """A rule for the clients in a round and the updates in its average."""

    def why_over(self, attempt: Attempt) -> str:
        """The reason why no round can be opened, if it depends on the number of rounds alone; empty: none."""
        return ""

    @abstractmethod
    def choose(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, allowed: Eligible, at: float
    ) -> tuple[OpenRound, Mapping[int, Message]]:
        """Return the round with the clients to charge, and the wrapped strategy's messages to them."""

    @abstractmethod
    def updates_to_aggregate(self, outcome: RoundOutcome, transport: Transport) -> list[Message]:
        """Return the updates that the wrapped strategy aggregates; empty: none, and the model stays.

        Raises what `UserLevelReleases.average` does.
        """


@dataclass(frozen=True)
class RunRounds:
    """The rounds of one run, once its clients are there."""

    wrapped: WrappedStrategy  # samples and averages
    accounts: Books  # grant and settle
    transport: Transport
    schedule: RoundSchedule
    control: ServerControl  # what the algorithm's server half sends
    tell: PhaseObserver  # what the run is about to do

    def open(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, *, again: bool, at: float = 0.0
    ) -> OpenRound:
        """Let the schedule choose among clients with budget left, and reserve what each may spend.

        Args:
            attempt: the attempt that is charged.
            arrays: the global model.
            config: settings that the wrapped strategy sends besides.
            again: whether this attempt was granted before, by a run that was stopped since.
            at: end of the previous round in simulated seconds.

        Returns:
            The round; it asks nobody when no client has budget left, or too few for the wrapped strategy, or none was
            drawn. With user-level noise clients join by Poisson sampling, and it may have none by chance.
        """
        if over := self.schedule.why_over(attempt):
            return OpenRound(attempt, arrays, over=over)
        self.transport.admit(arrays)
        allowed = self.accounts.open_to(attempt, again=again)
        chosen, written = self.schedule.choose(attempt, arrays, config, allowed, at)
        opened = self.transport.open(chosen, written, again=again)
        if opened.asked:
            return opened
        return replace(opened, passed_over=self.wrapped.could_ask(allowed, opened.began))

    def send(self, opened: OpenRound) -> Any:
        """Ask the clients, and wait for their answers."""
        number, asked = opened.attempt.round, opened.asked
        self.tell(Phase(Stage.TRAINING, number, asked))
        answers = self.transport.ask(opened)
        self.tell(Phase(Stage.AVERAGING, number, asked))
        reach("server.answered")
        return answers

    def settle(self, opened: OpenRound, answers: Any) -> RoundOutcome:
        """Return the round's outcome, and commit the charges that were spent."""
        outcome = self.transport.receive(opened, answers)
        self.accounts.settle(outcome)
        return outcome

    def average(self, outcome: RoundOutcome) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy aggregate what the schedule gives it.

        Raises:
            RoundFailedError: what it makes of that is not finite.
        """
        opened = outcome.opened
        if not (given := self.schedule.updates_to_aggregate(outcome, self.transport)):  # nobody sent an update
            return None, None
        self._advance_control(outcome)
        aggregated, metrics = self.wrapped.strategy.aggregate_train(opened.attempt.round, given)
        reach("server.averaged")
        return _in_its_own_types(aggregated, opened.arrays) if aggregated else None, metrics

    def _advance_control(self, outcome: RoundOutcome) -> None:
        """Let the algorithm's server half take in a round."""
        opened, config = outcome.opened, self.wrapped.config
        number = opened.attempt.round
        half = config.algorithm_in(number).server
        if half is not None:
            mean, weights = self.transport.mean(outcome)
            start, rate = flat(opened.arrays, self.transport.names), config.learning_rate_in(number)
            self.control.advance(half, start, mean, weights, config.local_steps, rate)


def _in_its_own_types(aggregated: ArrayRecord, model: ArrayRecord) -> ArrayRecord:
    """The average in the model's own types: some strategies compute in float64 and leave it so.

    Raises:
        RoundFailedError: it is not finite. Every further round on such a model would spend privacy for nothing.
    """
    with np.errstate(over="ignore"):  # an overflow is found below
        values = {name: aggregated[name].numpy().astype(old.dtype) for name, old in model.items()}
    if not all(np.isfinite(value).all() for value in values.values()):
        raise RoundFailedError(
            "The average of the clients' updates is not finite. The run stops with the model of the round before: "
            "lower learning-rate, or look for a client that sends huge values."
        )
    return ArrayRecord({name: Array(value) for name, value in values.items()})


_NOBODY = 0
"""Node id in a reply that the server made itself, not a client."""


@dataclass(frozen=True)
class StrategyChooses(RoundSchedule):
    """The wrapped strategy chooses among clients that may be asked, and averages their updates."""

    wrapped: WrappedStrategy

    def choose(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, allowed: Eligible, at: float
    ) -> tuple[OpenRound, Mapping[int, Message]]:
        """Choose the clients that the strategy writes to, among those that are present and drawn."""
        turnout = self.wrapped.turnout(attempt.round, allowed, at)
        written = self.wrapped.choose_clients(attempt.round, arrays, config, turnout.client_ids)
        clients, template = self.wrapped.clients(written), next(iter(written.values()), None)
        return OpenRound(attempt, arrays, len(allowed), clients, template, began=turnout.began), written

    def updates_to_aggregate(self, outcome: RoundOutcome, transport: Transport) -> list[Message]:
        return transport.as_messages(outcome, self.wrapped.weighted_by) if outcome.participants else []


class UserLevelReleases:
    """The user-level releases of one run, each charged to an account of each client as a whole.

    Args:
        noise: the mechanism and the budget.
        book: the account that a release is charged to before it is made.
        keystream: the server's randomness; secret unless the run has a seed.
        clipping_norm: the current norm of adaptive clipping when the run was stopped; None: the noise's first.
    """

    def __init__(
        self, noise: UserLevelNoise, book: UserLevelBook, keystream: Keystream, clipping_norm: float | None = None
    ) -> None:
        self.clipping_norm = noise.clipping_norm if clipping_norm is None else clipping_norm
        self._mechanism, self._book, self._keystream = noise.mechanism, book, keystream

    def why_over(self, attempt: Attempt) -> str:
        """The reason why the round cannot be opened; empty: it can. It depends on the number of rounds alone."""
        return "" if self._book.allows(attempt) else OVER

    def joined(self, client_ids: Iterable[str], attempt: Attempt) -> set[str]:
        """Sample the clients that join the round, from all given ones, whether or not they have budget left."""
        return self._mechanism.draw_clients(client_ids, self._keystream, _position(attempt))

    def average(self, attempt: Attempt, model: ArrayRecord, updates: Mapping[str, Message]) -> ArrayRecord:
        """The global model plus the noisy average of the clients' updates; charged first.

        Raises:
            ValueError: the attempt has released its average already, or the budget does not allow it.
            RunFolderError: the charge cannot be written; nothing is released.
        """
        self._book.charge(attempt)
        start = flat(model, tuple(model)).numpy()
        received = (reply.content.array_records[ARRAYS] for reply in updates.values())
        differences = (flat(update, tuple(model)).numpy() - start for update in received)  # one client at a time
        released = self._mechanism.release(
            differences, start.size, self.clipping_norm, self._keystream, _position(attempt)
        )
        self.clipping_norm = released.clipping_norm
        return shaped_as(model, start + released.mean, tuple(model))

    def spent(self) -> UserLevelSpent:
        """The current standing of the account."""
        return self._book.spent(self.clipping_norm)


def _position(attempt: Attempt) -> Position:
    return Position(attempt.round, attempt.attempt)


@dataclass(frozen=True)
class PoissonSampled(RoundSchedule):
    """User-level privacy: clients join by chance, and the wrapped strategy is given one noisy average."""

    wrapped: WrappedStrategy
    user_level: UserLevelReleases

    def why_over(self, attempt: Attempt) -> str:
        """The reason why the user-level account allows no further round; empty: it does."""
        return self.user_level.why_over(attempt)

    def choose(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, allowed: Eligible, at: float
    ) -> tuple[OpenRound, Mapping[int, Message]]:
        """Choose the clients that join and have budget left.

        The strategy writes to all clients, and its messages to those that did not join are dropped.

        Raises:
            ValueError: the strategy leaves out some clients, which it must not.
        """
        wrapped, began = self.wrapped, self.wrapped.turnout(attempt.round, allowed, at).began
        before = wrapped.online()
        messages = wrapped.choose_clients(attempt.round, arrays, config, before)
        asked = {client.client_id: node_id for node_id, client in wrapped.clients(messages).items()}
        everybody = before & wrapped.online()  # a client may come or go meanwhile
        if not asked.keys() >= everybody:
            raise ValueError(
                f"The wrapped strategy asks {len(asked)} of {len(everybody)} clients; with user-level noise clients "
                "join by Poisson sampling, with probability fraction-train of the settings: let its own be 1."
            )
        joined = self.user_level.joined(asked, attempt)
        written = {n: messages[n] for client_id, n in asked.items() if client_id in joined and client_id in allowed}
        return OpenRound(attempt, arrays, len(allowed), wrapped.clients(written), began=began, sampled=True), written

    def updates_to_aggregate(self, outcome: RoundOutcome, transport: Transport) -> list[Message]:
        """The global model plus the noisy average, in which all clients have one weight; it is charged here."""
        opened = outcome.opened
        if not opened.sampled:  # before the first round
            return []
        noisy = self.user_level.average(opened.attempt, opened.arrays, outcome.updates)
        metrics = MetricRecord({self.wrapped.weighted_by: 1.0})
        return [Message(RecordDict({ARRAYS: noisy, "metrics": metrics}), _NOBODY, MessageType.TRAIN)]
