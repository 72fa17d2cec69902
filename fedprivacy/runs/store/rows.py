"""What the run store says, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedprivacy.runs.store.schema import RunStatus
from fedprivacy.values.series import RoundPoint, RunFacts


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run, as the store knows it now.

    Attributes:
        facts: what does not change.
        status: how it stands.
        stage: what it is doing; empty before its first round and after its end.
        stage_round: in which round.
        stage_clients: how many clients were asked.
        started: seconds since 1970, UTC.
        updated: its last sign of life, the same.
        changes: grows with every change of the run or its rounds.
        last: the newest finished round; None: not even the state before the first is known.
    """

    facts: RunFacts
    status: RunStatus
    stage: str
    stage_round: int
    stage_clients: int
    started: float
    updated: float
    changes: int
    last: StoredRound | None


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A finished round, and when it was recorded: seconds since 1970, UTC."""

    point: RoundPoint
    at: float


@dataclass(frozen=True, slots=True)
class StoredClient:
    """A client's present state; see the columns of `recorded_clients`.

    Attributes:
        number: in the order of enrolment, from 0.
        client_id: the client.
        epsilon: privacy loss over all runs, server's view, by PLD; None: no bound.
        delta: of its budget.
        budget: its epsilon; None: none.
        share: epsilon over budget; None: no budget.
        rounds: charged, over all runs.
        steps: charged, over all runs.
        steps_left: of this run's, that the budget still allows.
        sampling_rate: q of this run's local steps.
        averaged: rounds of this run whose average holds its update.
        failed: rounds of this run that asked for an update and did not use it.
        exhausted_in: the first round after which no step was left.
        state: how it stands, see `fedprivacy.values.rounds.ClientState`.
        reason: why its last update was not used; None: it was, or none was asked for.
    """

    number: int
    client_id: str
    epsilon: float | None
    delta: float
    budget: float | None
    share: float | None
    rounds: int
    steps: int
    steps_left: int
    sampling_rate: float
    averaged: int
    failed: int
    exhausted_in: int | None
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Failures:
    """One reason for which updates were asked for and not used.

    Attributes:
        reason: the code, perhaps with a detail after a colon.
        times: how often.
        clients: how many different clients.
        client_ids: some of them.
        last_round: the newest round.
    """

    reason: str
    times: int
    clients: int
    client_ids: tuple[str, ...]
    last_round: int


@dataclass(frozen=True, slots=True)
class Tally:
    """A run's clients and what became of their updates, in few numbers.

    Attributes:
        states: how many clients are in each state; states without a client are missing.
        least_budget: the smallest finite epsilon budget; None: no client has one.
        most_share: the largest share of a budget that is spent; infinite if an epsilon has no bound, None: no budget.
        failures: how often updates were asked for and not used, by reason, over all rounds of the run.
    """

    states: Mapping[str, int]
    least_budget: float | None
    most_share: float | None
    failures: Mapping[str, int]


StoredCharge = Mapping[str, Any]
"""A charge by the columns of the ledger's `charges`, and `client_id`."""
