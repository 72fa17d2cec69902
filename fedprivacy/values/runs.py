"""A run as seen from outside: results of its rounds, the standing of its clients, its status, failures and audits.

A round's result is immutable. `Rows` shows results as plain rows.
"""

from __future__ import annotations

import enum
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedprivacy.values.events import History
from fedprivacy.values.metrics import Evaluation, HeldOut
from fedprivacy.values.series import EpsilonSpread, RoundPoint, RunFacts
from fedprivacy.values.spent import ClientSpent, ClientStanding, PopulationSpent, UserLevelSpent

if TYPE_CHECKING:
    import pandas


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


class RunStatus(enum.StrEnum):
    """The status of a run. `STOPPED`: it ended before its last round, because no budget was left or somebody stopped
    it.
    """

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunStanding:
    """A run and its current state."""

    facts: RunFacts  # constants of the run
    status: RunStatus
    phase: Phase | None  # current activity; None: idle, before its first round and after its end
    started: float  # seconds since 1970, UTC
    updated: float  # time of its last sign of life, same unit
    changes: int  # grows with every change of the run or its rounds
    last: RoundPoint | None  # the newest finished round; None: not even the state before the first is known

    @property
    def running(self) -> bool:
        """True until the run says that it ended."""
        return self.status is RunStatus.RUNNING

    @property
    def finished(self) -> int:
        """Number of the newest finished round; 0: none."""
        return self.last.round if self.last else 0


@dataclass(frozen=True, slots=True)
class Failures:
    """Updates that were asked for and not used, for one reason."""

    reason: str  # the code, perhaps with a detail after a colon
    times: int  # number of updates
    clients: int  # number of different clients
    client_ids: tuple[str, ...]  # some of them
    last_round: int  # the newest round


@dataclass(frozen=True, slots=True)
class RunTally:
    """Counts of a run's clients by state and of its unused updates by reason."""

    states: Mapping[str, int]  # number of clients in each state; states without a client are missing
    least_budget: float | None  # the smallest finite epsilon budget; None: no client has one
    # The largest share of a budget that is spent; infinite if an epsilon has no bound, None: no budget.
    most_share: float | None
    failures: Mapping[str, int]  # updates asked for and not used, by reason, over all rounds


class Verdict(enum.StrEnum):
    """The comparison of a lower bound with the accountant's upper bound."""

    CONSISTENT = "consistent"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A lower bound on a privacy loss, found by attack, and the upper bound of the accountant."""

    at: float  # time of the audit, in seconds since the epoch
    attack: str  # name of the attack
    client_id: str  # client whose loss is bounded; empty: the run as a whole
    lower: float  # epsilon that the attack proved, with probability `confidence`
    confidence: float  # of the lower bound, for example 0.95
    upper: float  # epsilon that the accountant states, maybe infinite
    delta: float  # delta of both bounds
    accountant: str  # source of the upper bound
    view: str  # observer for whom both bounds hold

    @property
    def verdict(self) -> Verdict:
        """Violated: the attack proved a larger loss than the accountant allows. One of them is wrong, or the code."""
        return Verdict.CONSISTENT if self.lower <= self.upper else Verdict.VIOLATED


_MOST_SHOWN = 50
"""Maximum number of rows of a table in a notebook."""


class Rows(list[dict[str, Any]]):
    """Results as plain dictionaries with the same keys; convertible to a data frame. A notebook shows a table.

    >>> rows = Rows([{"client_id": "client-0", "epsilon": 1.5}])
    >>> rows[0]["epsilon"]
    1.5
    """

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with a row for each row and a column for each key.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("pandas is not installed; pip install pandas, or use the rows as they are.") from error
        return pd.DataFrame.from_records(self)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{html.escape(key)}</th>" for key in (self[0] if self else ()))
        rows = [
            [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row.values()]
            for row in self[:_MOST_SHOWN]
        ]
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        more = len(self) - len(rows)
        return f"<table><tr>{heads}</tr>{body}</table>" + f"<p>and {more} more</p>" * bool(more)
