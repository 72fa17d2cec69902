"""Writes a run into the store, many rounds at a time if they come fast."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, insert, select, update

from fedprivacy.ledger.database import Database
from fedprivacy.ledger.dialects import put_rows
from fedprivacy.runs.store.schema import (
    CLIENTS_PER_PART,
    RunStatus,
    audits,
    recorded_clients,
    recorded_epsilons,
    recorded_failures,
    recorded_rounds,
    recorded_runs,
)
from fedprivacy.values.audits import AuditResult
from fedprivacy.values.nulls import finite_or_none
from fedprivacy.values.rounds import Phase, RoundResult, client_state
from fedprivacy.values.series import RoundPoint, RunFacts
from fedprivacy.values.spent import ClientSpent

_OF_A_RUN = (recorded_failures, recorded_epsilons, recorded_clients, recorded_rounds)


@dataclass(slots=True)
class _Client:
    """What the store says of a client."""

    number: int
    spent: ClientSpent
    averaged: int = 0
    failed: int = 0
    exhausted_in: int | None = None
    reason: str | None = None
    unreconciled: bool = False

    def row(self, run_id: str) -> dict[str, Any]:
        spent = self.spent
        limited = math.isfinite(spent.budget_epsilon)
        return {
            "run_id": run_id,
            "number": self.number,
            "client_id": spent.client_id,
            "epsilon": finite_or_none(spent.epsilon),
            "delta": spent.delta,
            "budget": finite_or_none(spent.budget_epsilon),
            "share": finite_or_none(spent.epsilon / spent.budget_epsilon) if limited else None,
            "rounds": spent.rounds,
            "steps": spent.steps,
            "steps_left": spent.steps_left,
            "sampling_rate": spent.sampling_rate,
            "averaged": self.averaged,
            "failed": self.failed,
            "exhausted_in": self.exhausted_in,
            "state": client_state(spent, self.reason, unreconciled=self.unreconciled),
            "reason": self.reason,
        }


class RunRecording:
    """One run's place in the store. What is added is kept in memory until `flush` has written it, in one transaction.

    Not safe for concurrent use.

    Args:
        url: of the ledger.
        facts: of the run. If the store knows the run, it goes on: what was recorded of it is forgotten, but for when.
        patience: seconds for which a database that is locked, full or gone is tried again.

    Raises:
        LedgerError: the database cannot be used.
    """

    def __init__(self, url: str, facts: RunFacts, patience: float = 5.0) -> None:
        self._run_id = facts.run_id
        self._database = Database(url, patience, durable=False)
        self._clients: dict[str, _Client] = {}
        self._changed: set[str] = set()
        self._pending: list[tuple[RoundResult, float]] = []
        self._phase: Phase | None = None
        self._status = RunStatus.RUNNING
        self._recorded_at: dict[int, float] = {}
        self._database.write(lambda connection, _: self._begin(connection, facts))

    def add(self, record: RoundResult, at: float | None = None) -> None:
        """Take in a finished round.

        Args:
            record: the round.
            at: when it was finished, seconds since 1970; None: now. What was recorded before keeps its time.
        """
        at = self._recorded_at.pop(record.round, at) or time.time()
        for client_id, spent in record.spent.items():
            self._take_in(client_id, spent, record.round)
        for client_id in record.participants:
            self._answered(client_id, None)
        for client_id, reason in record.failures.items():
            self._answered(client_id, reason)
        self._mark_unreconciled(set(record.unreconciled))
        self._pending.append((record, at))

    def enter(self, phase: Phase) -> None:
        """Say what the run is doing."""
        self._phase = phase

    def end(self, status: RunStatus) -> None:
        """Say how the run ended."""
        self._phase, self._status = None, status

    def flush(self) -> None:
        """Write what was added since the last time, and a sign of life.

        Raises:
            LedgerError: the database cannot be used; nothing is lost, and the next call tries again.
        """
        self._database.write(lambda connection, _: self._write(connection))
        self._changed.clear()
        self._pending.clear()

    def close(self) -> None:
        """Give back every connection."""
        self._database.close()

    def _begin(self, connection: Connection, facts: RunFacts) -> None:
        mine = recorded_rounds.c.run_id == self._run_id
        known = connection.execute(select(recorded_rounds.c.round, recorded_rounds.c.at).where(mine)).all()
        self._recorded_at = {row.round: row.at for row in known}
        for table in _OF_A_RUN:
            connection.execute(delete(table).where(table.c.run_id == self._run_id))
        if connection.scalar(select(recorded_runs.c.run_id).where(recorded_runs.c.run_id == self._run_id)) is None:
            connection.execute(insert(recorded_runs).values(_run_row(facts)))

    def _take_in(self, client_id: str, spent: ClientSpent, round: int) -> None:
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client(len(self._clients), spent)
        elif client.spent == spent:
            return
        client.spent = spent
        if not spent.exhausted:
            client.exhausted_in = None  # its budget was raised by an explicit act
        elif client.exhausted_in is None:
            client.exhausted_in = round
        self._changed.add(client_id)

    def _answered(self, client_id: str, reason: str | None) -> None:
        client = self._clients[client_id]
        client.reason = reason
        client.averaged += reason is None
        client.failed += reason is not None
        self._changed.add(client_id)

    def _mark_unreconciled(self, now: set[str]) -> None:
        before = {client_id for client_id, client in self._clients.items() if client.unreconciled}
        for client_id in before ^ now:
            self._clients[client_id].unreconciled = client_id in now
            self._changed.add(client_id)

    def _write(self, connection: Connection) -> None:
        rows = [self._clients[client_id].row(self._run_id) for client_id in sorted(self._changed, key=self._number)]
        put_rows(connection, recorded_clients, rows)
        for table, new in (
            (recorded_rounds, [self._round_row(record.point, at) for record, at in self._pending]),
            (recorded_epsilons, [row for record, _ in self._pending for row in self._epsilon_rows(record)]),
            (recorded_failures, [row for record, _ in self._pending for row in self._failure_rows(record)]),
        ):
            put_rows(connection, table, new)
        phase = self._phase
        stage = {
            "stage": phase.stage if phase else "",
            "stage_round": phase.round if phase else 0,
            "stage_clients": phase.clients if phase else 0,
        }
        now = {"status": self._status, "updated": time.time(), "changes": recorded_runs.c.changes + 1}
        connection.execute(update(recorded_runs).where(recorded_runs.c.run_id == self._run_id).values(stage | now))

    def _number(self, client_id: str) -> int:
        return self._clients[client_id].number

    def _round_row(self, point: RoundPoint, at: float) -> dict[str, Any]:
        return {
            "run_id": self._run_id,
            "round": point.round,
            "at": at,
            "metrics": json.dumps({name: finite_or_none(value) for name, value in point.metrics.items()}),
            "epsilons": np.array(list(asdict(point.epsilons).values()), dtype="<f8").tobytes(),
            "clients": point.clients,
            "participants": point.participants,
            "failed": point.failed,
            "exhausted": point.exhausted,
            "unreconciled": point.unreconciled,
        }

    def _epsilon_rows(self, record: RoundResult) -> Iterator[dict[str, Any]]:
        """The round's epsilons in parts; nobody's number is ever given to another client."""
        epsilons = np.full(max(map(self._number, record.spent), default=-1) + 1, np.nan)
        for client_id, spent in record.spent.items():
            epsilons[self._number(client_id)] = spent.epsilon
        for part, first in enumerate(range(0, epsilons.size, CLIENTS_PER_PART)):
            some = epsilons[first : first + CLIENTS_PER_PART].astype("<f8").tobytes()
            yield {"run_id": self._run_id, "part": part, "round": record.round, "epsilons": some}

    def _failure_rows(self, record: RoundResult) -> Iterator[dict[str, Any]]:
        for client_id, reason in record.failures.items():
            yield {"run_id": self._run_id, "round": record.round, "client_id": client_id, "reason": reason}


def record_audits(url: str, run_id: str, results: Sequence[AuditResult]) -> None:
    """Add what audits of a run found.

    Raises:
        LedgerError: the database cannot be used.
    """
    database = Database(url)
    rows = [{"run_id": run_id} | asdict(r) | {"upper": finite_or_none(r.upper)} for r in results]
    changed = update(recorded_runs).where(recorded_runs.c.run_id == run_id)

    def work(connection: Connection, _: bool) -> None:
        connection.execute(insert(audits), rows)
        connection.execute(changed.values(changes=recorded_runs.c.changes + 1))

    try:
        database.write(work)
    finally:
        database.close()


def _run_row(facts: RunFacts) -> dict[str, Any]:
    now = time.time()
    return {
        "run_id": facts.run_id,
        "name": facts.name,
        "settings": json.dumps(dict(facts.settings)),
        "noise_multiplier": facts.noise_multiplier,
        "relation": facts.relation,
        "metric": facts.metric,
        "status": RunStatus.RUNNING,
        "stage": "",
        "stage_round": 0,
        "stage_clients": 0,
        "started": now,
        "updated": now,
        "changes": 0,
    }
