"""A client's spent privacy loss, its standing in its run, and the reasons why an update was not used."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSpent:
    """One client's privacy loss so far, seen by the server, over all runs on its shard."""

    client_id: str
    # Composed privacy loss at `delta`, by PLD: an odometer's reading, no budget; infinite if no bound is known.
    epsilon: float
    delta: float  # of the client's budget
    budget_epsilon: float  # the budget; infinite if the run only measures
    rounds: int  # rounds charged
    steps: int  # local steps charged
    steps_left: int  # steps of the run that the budget still allows
    sampling_rate: float  # q of the run's local steps
    noise_multiplier: float  # sigma of the run's local steps; 0 without privacy

    @property
    def exhausted(self) -> bool:
        """True if not one more step is allowed."""
        return self.steps_left == 0

    @property
    def limited(self) -> bool:
        """True if there is a finite budget."""
        return math.isfinite(self.budget_epsilon)

    @property
    def share(self) -> float | None:
        """Epsilon over budget; None: there is no budget."""
        return self.epsilon / self.budget_epsilon if self.limited else None


@dataclass(frozen=True, slots=True)
class Reason:
    """The meaning of a reason code."""

    words: str  # a clause for people
    # True if the client refused before it touched a record: its charge is returned. Any other charge stands.
    refused: bool = False


REASONS = {
    "no-reply": Reason("the client did not answer in time"),
    "unreachable": Reason("Flower lost the client or its reply on the way"),
    "app-failed": Reason("the client's app ended with an error, which its own log names"),
    "dropped-out": Reason("the simulated client went away without an answer"),
    "too-late": Reason("the simulated client answered when the round was over; what it released is charged"),
    "budget-exhausted": Reason("the client's own guard refused: its budget is spent", refused=True),
    "grant-invalid": Reason("the client refused a grant that it could not accept", refused=True),
    "seed-in-deployment": Reason("the client refused to train with a known seed", refused=True),
    "no-guard": Reason("the client has no guard and refused to train", refused=True),
    "guard-unusable": Reason("the client could not write down the charge and refused to train", refused=True),
    "no-room": Reason("the client's disk has no room for a round, and it refused to train", refused=True),
    "no-memory": Reason("the client's host has too little memory for the model, and it refused to train", refused=True),
    "no-key": Reason("the client has no key to sign with and refused to train", refused=True),
    "node-config-invalid": Reason("the client's own node configuration is incomplete or wrong", refused=True),
    "task-not-allowed": Reason("the client's own node configuration does not allow this task", refused=True),
    "question-not-allowed": Reason("the client's own node configuration does not allow these questions", refused=True),
    "questions-exhausted": Reason("the client's own guard refused: its budget for questions is spent", refused=True),
    "enrolment-invalid": Reason("the client's own server did not sign the request to enrol", refused=True),
    "already-charged": Reason("the client had been charged when it died, and lost its update"),
    "client-failed": Reason("training failed on the client's host"),
    "malformed-refusal": Reason("the client's refusal could not be read"),
    "malformed-receipt": Reason("the client's receipt could not be read"),
    "receipt-does-not-match-grant": Reason("the client's receipt says something else than the grant"),
    "forged-receipt": Reason("the client's key did not sign the receipt"),
    "receipt-of-another-update": Reason("the receipt was signed for another update"),
    "too-large": Reason("a parameter of the update is beyond 1e15"),
    "wrong-arrays": Reason("the update holds other parameters than the model"),
    "wrong-shape": Reason("a parameter of the update has another shape than the model's"),
    "undecodable": Reason("a parameter of the update could not be read"),
    "not-finite": Reason("a parameter of the update is infinite or not a number"),
}
"""Reasons by code, the part of a reason before its first colon."""


def reason_of(text: str) -> Reason:
    """Return the meaning of a reason, with or without a detail after its code; unknown codes stand for themselves."""
    code = text.partition(":")[0]
    if code.startswith("client-error-"):  # of runs before version 0.2
        return Reason("Flower could not deliver the message, or the client's app ended with an error")
    return REASONS.get(code, Reason(code.replace("-", " ")))


class ClientState(enum.StrEnum):
    """The state of a client in its run, in the words that people and programs read everywhere.

    `SPENT`: its budget allows no further step, from the last round on that the run planned: a success. `EXHAUSTED`: it
    allows none already before. `UNRECONCILED`: no receipt has confirmed a charge; it counts. `REFUSED`, `FAILED`: what
    became of its update when it was last asked. `ACTIVE`: none of these.
    """

    ACTIVE = "active"
    SPENT = "spent as planned"
    EXHAUSTED = "exhausted"
    UNRECONCILED = "unreconciled"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def good(self) -> bool:
        """True if all is as it was planned; any other state is shown in the colour of a warning."""
        return self in (ClientState.ACTIVE, ClientState.SPENT)

    @property
    def slug(self) -> str:
        """The state as a class of a style sheet."""
        return self.replace(" ", "-")

    @classmethod
    def of_budget(cls, exhausted_in: int | None, rounds: int) -> ClientState:
        """Return the state of a budget.

        Args:
            exhausted_in: the first round after which no step was left; None: some is.
            rounds: number of rounds that the run plans.
        """
        if exhausted_in is None:
            return cls.ACTIVE
        return cls.SPENT if exhausted_in >= rounds else cls.EXHAUSTED


@dataclass(slots=True)
class ClientStanding:
    """The standing of a client after the run's last round; `fedprivacy.values.rounds.Roster` updates it."""

    number: int  # position in the order of enrolment, from 0
    spent: ClientSpent  # its privacy loss
    planned: int  # number of rounds that the run plans
    averaged: int = 0  # rounds of the run whose average holds its update
    failed: int = 0  # rounds of the run that asked for an update and did not use it
    exhausted_in: int | None = None  # the first round after which no step was left; None: some is
    reason: str | None = None  # why its last update was not used; None: it was, or none was asked for
    unreconciled: bool = False  # True if a charge of the run has no receipt

    @property
    def client_id(self) -> str:
        """The client."""
        return self.spent.client_id

    @property
    def budget_state(self) -> ClientState:
        """The state of its budget alone."""
        return ClientState.of_budget(self.exhausted_in, self.planned)

    @property
    def state(self) -> ClientState:
        """The state, in one word."""
        if self.budget_state is not ClientState.ACTIVE:
            return self.budget_state
        if self.unreconciled:
            return ClientState.UNRECONCILED
        if self.reason is None:
            return ClientState.ACTIVE
        return ClientState.REFUSED if reason_of(self.reason).refused else ClientState.FAILED
