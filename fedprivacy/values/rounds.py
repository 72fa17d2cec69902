"""The state of a run as seen from outside: one immutable result a round, and the standing of its clients."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fedprivacy.values.events import History
from fedprivacy.values.metrics import Evaluation, HeldOut
from fedprivacy.values.population import PopulationSpent
from fedprivacy.values.series import EpsilonSpread, RoundPoint
from fedprivacy.values.spent import ClientSpent, ClientStanding, UserLevelSpent


@dataclass(frozen=True)
class RoundResult:
    """All results of a finished round."""

    round: int  # counted from 1; 0 is the state before the first round
    # Of the global model on the server's public records; with local evaluation, of the model before on the clients'.
    metrics: Mapping[str, float]
    spent: Mapping[str, ClientSpent]  # every enrolled client's privacy loss after the round, by client_id
    participants: tuple[str, ...]  # clients whose update was averaged
    failures: Mapping[str, str]  # clients whose update was asked for and not used, with the reason
    unreconciled: tuple[str, ...] = ()  # clients with a charge of this run that no receipt has confirmed. It counts
    # Local evaluations, by client_id, of the model that the round began with; each is noisy, and was charged.
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    # What clients' models score on held-out, public records, by client_id: simulated, of the model after the round.
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)
    clock: float | None = None  # simulated seconds since the run began, at the round's end; None: it has no such clock
    seconds: float | None = None  # how many of them the round took, with the wait for somebody to ask
    # Charges to the client that has spent most, over all runs; empty without privacy.
    most_charged: History = field(default_factory=dict)
    user_level: UserLevelSpent | None = None  # what the models tell of a client as a whole; None: without such noise

    @property
    def max_epsilon(self) -> float:
        """The largest privacy loss of a client."""
        return float(self.population.epsilons.max(initial=0.0))

    @property
    def exhausted(self) -> tuple[str, ...]:
        """Clients with nothing left of their budget."""
        return self.population.exhausted

    @cached_property
    def population(self) -> PopulationSpent:
        """The content of `spent`, in a form that scales to any number of clients."""
        return PopulationSpent.of(self.spent)

    @cached_property
    def point(self) -> RoundPoint:
        """The round in few numbers; computed on first use, since many clients take a while."""
        return RoundPoint(
            round=self.round,
            metrics=self.metrics,
            epsilons=EpsilonSpread.of(self.population.epsilons),
            clients=len(self.spent),
            participants=len(self.participants),
            failed=len(self.failures),
            exhausted=len(self.exhausted),
            unreconciled=len(self.unreconciled),
        )


class Roster:
    """The standing of each client of a run, updated round by round.

    Args:
        planned: number of rounds that the run plans.

    Attributes:
        clients: standings by client_id, in the order of enrolment.
        changed: clients whose standing has changed since this was last cleared.
    """

    def __init__(self, planned: int) -> None:
        self._planned = planned
        self.clients: dict[str, ClientStanding] = {}
        self.changed: set[str] = set()
        self._unreconciled: frozenset[str] = frozenset()
        self._seen: PopulationSpent | None = None

    def add(self, result: RoundResult) -> None:
        """Take in a finished round, the state before the first one too."""
        for client_id in result.population.changed_since(self._seen):
            self._take_in(client_id, result.spent[client_id], result.round)
        self._seen = result.population
        for client_id in result.participants:
            self._answered(client_id, None)
        for client_id, reason in result.failures.items():
            self._answered(client_id, reason)
        before, self._unreconciled = self._unreconciled, frozenset(result.unreconciled)
        for client_id in before ^ self._unreconciled:
            self.clients[client_id].unreconciled = client_id in self._unreconciled
            self.changed.add(client_id)

    def _take_in(self, client_id: str, spent: ClientSpent, round: int) -> None:
        client = self.clients.get(client_id)
        if client is None:
            client = self.clients[client_id] = ClientStanding(len(self.clients), spent, self._planned)
        elif client.spent == spent:
            return
        client.spent = spent
        if not spent.exhausted:
            client.exhausted_in = None  # its budget was raised by an explicit act
        elif client.exhausted_in is None:
            client.exhausted_in = round
        self.changed.add(client_id)

    def _answered(self, client_id: str, reason: str | None) -> None:
        client = self.clients[client_id]
        client.reason = reason
        client.averaged += reason is None
        client.failed += reason is not None
        self.changed.add(client_id)


class Stage(enum.StrEnum):
    """The activity of a run."""

    TRAINING = "training"
    AVERAGING = "averaging"
    EVALUATING = "evaluating"


@dataclass(frozen=True, slots=True)
class Phase:
    """The position of a run between two finished rounds."""

    stage: Stage  # current activity
    round: int  # current round
    clients: int  # number of clients asked


PhaseObserver = Callable[[Phase], None]  # called before each phase of a run; it must return at once
Observer = Callable[[RoundResult], None]  # called with every finished round
