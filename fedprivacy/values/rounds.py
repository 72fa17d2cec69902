"""What a run looks like from outside: one immutable record a round, and the whole history."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fedprivacy.values.reasons import reason_of
from fedprivacy.values.series import RoundPoint, Spread
from fedprivacy.values.spent import ClientSpent


@dataclass(frozen=True)
class RoundResult:
    """Everything that a finished round tells.

    Attributes:
        round: counted from 1; 0 is the state before the first round.
        metrics: of the global model on the server's public records.
        spent: every enrolled client's privacy loss after the round, by client_id.
        participants: clients whose update was averaged.
        failures: clients whose update was asked for and not used, with the reason.
        unreconciled: clients with a charge of this run that no receipt has confirmed. It counts.
    """

    round: int
    metrics: Mapping[str, float]
    spent: Mapping[str, ClientSpent]
    participants: tuple[str, ...]
    failures: Mapping[str, str]
    unreconciled: tuple[str, ...] = ()

    @property
    def max_epsilon(self) -> float:
        """The largest privacy loss of a client."""
        return max((client.epsilon for client in self.spent.values()), default=0.0)

    @property
    def exhausted(self) -> tuple[str, ...]:
        """Clients with nothing left of their budget."""
        return tuple(client_id for client_id, client in self.spent.items() if client.exhausted)

    @cached_property
    def point(self) -> RoundPoint:
        """The round in few numbers; found when first asked for, since of many clients that takes a while."""
        return RoundPoint(
            round=self.round,
            metrics=self.metrics,
            epsilons=Spread.of([client.epsilon for client in self.spent.values()]),
            clients=len(self.spent),
            participants=len(self.participants),
            failed=len(self.failures),
            exhausted=len(self.exhausted),
            unreconciled=len(self.unreconciled),
        )


class ClientState(enum.StrEnum):
    """How a client stands in its run.

    `EXHAUSTED`: its budget allows no further step. `UNRECONCILED`: no receipt has confirmed a charge; it counts.
    `REFUSED`, `FAILED`: what became of its update when it was last asked. `ACTIVE`: none of these.
    """

    ACTIVE = "active"
    EXHAUSTED = "exhausted"
    UNRECONCILED = "unreconciled"
    REFUSED = "refused"
    FAILED = "failed"


def client_state(spent: ClientSpent, failure: str | None, *, unreconciled: bool) -> ClientState:
    """The state of a client.

    Args:
        spent: its account.
        failure: why its last update was not used; None: it was, or none was asked for.
        unreconciled: whether a charge of the run has no receipt.
    """
    if spent.exhausted:
        return ClientState.EXHAUSTED
    if unreconciled:
        return ClientState.UNRECONCILED
    if failure is None:
        return ClientState.ACTIVE
    return ClientState.REFUSED if reason_of(failure).refused else ClientState.FAILED


class Stage(enum.StrEnum):
    """What a run is doing."""

    TRAINING = "training"
    AVERAGING = "averaging"
    EVALUATING = "evaluating"


@dataclass(frozen=True, slots=True)
class Phase:
    """Where a run is, between two finished rounds.

    Attributes:
        stage: what it is doing.
        round: in which round.
        clients: how many were asked.
    """

    stage: Stage
    round: int
    clients: int


PhaseObserver = Callable[[Phase], None]
"""Is told what a run is about to do. It must return at once."""

Observer = Callable[[RoundResult], None]
"""Is told of every finished round: the only way to extend the loop."""
