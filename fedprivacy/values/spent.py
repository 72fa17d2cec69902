"""What a client has spent, and how it stands in its run."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from fedprivacy.values.reasons import reason_of


@dataclass(frozen=True, slots=True)
class ClientSpent:
    """One client's privacy loss so far, seen by the server, over all runs on its shard.

    Attributes:
        client_id: the client.
        epsilon: composed privacy loss at `delta`, by PLD: an odometer's reading, no budget; infinite if no bound is
            known.
        delta: delta of the client's budget.
        budget_epsilon: the budget; infinite if the run only measures.
        rounds: rounds charged.
        steps: local steps charged.
        steps_left: steps of the run that the budget still allows.
        sampling_rate: q of the run's local steps.
    """

    client_id: str
    epsilon: float
    delta: float
    budget_epsilon: float
    rounds: int
    steps: int
    steps_left: int
    sampling_rate: float

    @property
    def exhausted(self) -> bool:
        """Whether not one more step is allowed."""
        return self.steps_left == 0

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return math.isfinite(self.budget_epsilon)

    @property
    def share(self) -> float | None:
        """Epsilon over budget; None: there is no budget."""
        return self.epsilon / self.budget_epsilon if self.limited else None


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


@dataclass(slots=True)
class ClientStanding:
    """What a run says of a client after its last round; see `fedprivacy.values.rounds.Roster`, which keeps it so.

    Attributes:
        number: in the order of enrolment, from 0.
        spent: its account.
        averaged: rounds of the run whose average holds its update.
        failed: rounds of the run that asked for an update and did not use it.
        exhausted_in: the first round after which no step was left; None: some is.
        reason: why its last update was not used; None: it was, or none was asked for.
        unreconciled: whether a charge of the run has no receipt.
    """

    number: int
    spent: ClientSpent
    averaged: int = 0
    failed: int = 0
    exhausted_in: int | None = None
    reason: str | None = None
    unreconciled: bool = False

    @property
    def client_id(self) -> str:
        """The client."""
        return self.spent.client_id

    @property
    def state(self) -> ClientState:
        """All of it in a word."""
        if self.spent.exhausted:
            return ClientState.EXHAUSTED
        if self.unreconciled:
            return ClientState.UNRECONCILED
        if self.reason is None:
            return ClientState.ACTIVE
        return ClientState.REFUSED if reason_of(self.reason).refused else ClientState.FAILED
