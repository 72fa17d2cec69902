"""The clients in a round: those that the wrapped strategy chooses, or a Poisson sample of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.noisy_average import UserLevelReleases
from fedprivacy.flower.server.one_round import OpenRound, RoundOutcome
from fedprivacy.flower.server.registry import Eligible
from fedprivacy.flower.server.rounds import RoundSchedule, Transport
from fedprivacy.flower.server.wrapped import WrappedStrategy
from fedprivacy.values.attempt import Attempt

_NOBODY = 0
"""Node id in a reply that the server made itself, not a client."""


@dataclass(frozen=True)
class StrategyChooses(RoundSchedule):
    """The wrapped strategy chooses among clients that may be asked, and averages their updates."""

    wrapped: WrappedStrategy

    def choose(  # noqa: PLR0917 - what a round begins with
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, allowed: Eligible, again: bool, at: float
    ) -> tuple[OpenRound, Mapping[int, Message]]:
        """Choose the clients that the strategy writes to, among those that are present and drawn."""
        turnout = self.wrapped.turnout(attempt.round, allowed, at)
        written = self.wrapped.chosen(attempt.round, arrays, config, turnout.client_ids)
        clients, template = self.wrapped.clients(written), next(iter(written.values()), None)
        return OpenRound(attempt, arrays, len(allowed), clients, template, began=turnout.began), written

    def given(self, outcome: RoundOutcome, transport: Transport) -> list[Message]:
        """The updates."""
        return transport.given(outcome, self.wrapped.weighted_by) if outcome.participants else []


@dataclass(frozen=True)
class PoissonSampled(RoundSchedule):
    """User-level privacy: clients join by chance, and the wrapped strategy is given one noisy average."""

    wrapped: WrappedStrategy
    user_level: UserLevelReleases

    def why_over(self, attempt: Attempt) -> str:
        """The reason why the user-level account allows no further round; empty: it does."""
        return self.user_level.why_over(attempt)

    def choose(  # noqa: PLR0917 - what a round begins with
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, allowed: Eligible, again: bool, at: float
    ) -> tuple[OpenRound, Mapping[int, Message]]:
        """Choose the clients that join and have budget left.

        The strategy writes to all clients, and its messages to those that did not join are dropped.

        Raises:
            ValueError: the strategy leaves out some clients, which it must not.
        """
        wrapped, began = self.wrapped, self.wrapped.turnout(attempt.round, allowed, at).began
        before = wrapped.online()
        messages = wrapped.chosen(attempt.round, arrays, config, before)
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

    def given(self, outcome: RoundOutcome, transport: Transport) -> list[Message]:
        """The global model plus the noisy average, in which all clients have one weight; it is charged here."""
        opened = outcome.opened
        if not opened.sampled:  # before the first round
            return []
        noisy = self.user_level.average(opened.attempt, opened.arrays, outcome.updates)
        metrics = MetricRecord({self.wrapped.weighted_by: 1.0})
        return [Message(RecordDict({ARRAYS: noisy, "metrics": metrics}), _NOBODY, MessageType.TRAIN)]
