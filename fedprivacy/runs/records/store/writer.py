"""Writes a run into the store, many rounds at a time if they come fast."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, delete, insert, select, update

from fedprivacy.ledger.database import Database, put_rows
from fedprivacy.ledger.schema import audits
from fedprivacy.runs.records.store import schema
from fedprivacy.runs.records.store.database import RECORD, RecordDatabase, url_in
from fedprivacy.values.numbers import plain
from fedprivacy.values.runs import AuditResult, Phase, Roster, RoundResult, RunStatus
from fedprivacy.values.series import RunFacts

_OF_A_RUN = (schema.recorded_failures, schema.recorded_epsilons, schema.recorded_clients, schema.recorded_rounds)


class RunRecording:
    """One run's place in the store. What is added is kept in memory until `flush` has written it, in one transaction.

    Not safe for concurrent use.

    Args:
        url: of the store.
        facts: of the run. If the store knows the run, it goes on: what was recorded of it is forgotten, but for when.
        patience: seconds for which a database that is locked, full or gone is tried again.

    Raises:
        LedgerError: the database cannot be used.
    """

    def __init__(self, url: str, facts: RunFacts, patience: float = 5.0) -> None:
        self._run_id = facts.run_id
        self.database = RecordDatabase(url, patience)
        self._roster = Roster(facts.rounds)
        self._numbered: tuple[Mapping[str, int], NDArray[np.int64]] = {}, np.empty(0, dtype=np.int64)
        self._pending: list[tuple[RoundResult, float]] = []
        self._phase: Phase | None = None
        self._status = RunStatus.RUNNING
        self._recorded_at: dict[int, float] = {}
        self._noises: list[float] | None = None if facts.noise_multiplier else []  # the least and the largest that came
        self.database.write(lambda connection, _: self._begin(connection, facts))

    def add(self, result: RoundResult, at: float | None = None) -> None:
        """Take in a round that was finished `at` seconds since 1970, or now. What was recorded keeps its time."""
        at = self._recorded_at.pop(result.round, at) or time.time()
        self._roster.add(result)
        self._pending.append((result, at))

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
        rows = self._rows()  # made before the database is locked: of many clients that takes a while
        self.database.write(lambda connection, _: self._write(connection, rows))
        self._roster.changed.clear()
        self._pending.clear()

    def close(self) -> None:
        """Give back every connection."""
        self.database.close()

    def _begin(self, connection: Connection, facts: RunFacts) -> None:
        runs, rounds = schema.recorded_runs, schema.recorded_rounds
        finished = select(rounds.c.round, rounds.c.at).where(rounds.c.run_id == self._run_id)
        self._recorded_at = {row.round: row.at for row in connection.execute(finished)}
        for table in _OF_A_RUN:
            connection.execute(delete(table).where(table.c.run_id == self._run_id))
        if connection.scalar(select(runs.c.run_id).where(runs.c.run_id == self._run_id)) is None:
            connection.execute(insert(runs).values(schema.run_row(facts)))

    def _range_of_noise(self) -> schema.Row:
        """The least and the largest noise multiplier, where clients come with their own; empty: known before."""
        if self._noises is None:
            return {}
        came = [self._roster.clients[client_id].spent.noise_multiplier for client_id in self._roster.changed]
        noises = [*self._noises, *came]
        self._noises = [min(noises), max(noises)] if noises else []
        return dict(zip(("noise_multiplier", "largest_noise_multiplier"), self._noises, strict=False))

    def _rows(self) -> dict[Table, list[schema.Row]]:
        """The rows that were added since the last flush, by table."""
        run_id, clients = self._run_id, self._roster.clients
        changed = sorted((clients[client_id] for client_id in self._roster.changed), key=lambda client: client.number)
        results = [result for result, _ in self._pending]
        return {
            schema.recorded_clients: [schema.client_row(run_id, client) for client in changed],
            schema.recorded_rounds: [schema.round_row(run_id, result.point, at) for result, at in self._pending],
            schema.recorded_epsilons: [row for one in results for row in self._epsilon_rows(one)],
            schema.recorded_failures: [row for one in results for row in schema.failure_rows(run_id, one)],
        }

    def _write(self, connection: Connection, added: Mapping[Table, Sequence[schema.Row]]) -> None:
        for table, rows in added.items():
            put_rows(connection, table, rows)
        now = {"status": self._status, "updated": time.time(), "changes": schema.recorded_runs.c.changes + 1}
        mine = update(schema.recorded_runs).where(schema.recorded_runs.c.run_id == self._run_id)
        connection.execute(mine.values(schema.phase_row(self._phase) | self._range_of_noise() | now))

    def _epsilon_rows(self, result: RoundResult) -> Iterator[schema.Row]:
        """A round's epsilons by number: nobody's number is ever given to another client."""
        places = result.population.places
        if self._numbered[0] is not places:
            clients = self._roster.clients
            self._numbered = places, np.array([clients[client_id].number for client_id in places], dtype=np.int64)
        numbers = self._numbered[1]
        epsilons = np.full(numbers.max(initial=-1) + 1, np.nan)
        epsilons[numbers] = result.population.epsilons
        return schema.epsilon_rows(self._run_id, result.round, epsilons)


def record_audits(ledger: str, run_id: str, results: Sequence[AuditResult], folder: Path | None = None) -> None:
    """Add what audits of a run found to its ledger's database, and let the pages that show the run's folder know.

    Raises:
        LedgerError: the database cannot be used.
    """
    rows = [{"run_id": run_id} | plain(result) for result in results]
    with closing(Database(ledger)) as database:
        database.write(lambda connection, _: connection.execute(insert(audits), rows))
    for url in [ledger, *([url_in(folder)] if folder and (folder / RECORD).is_file() else [])]:
        with closing(RecordDatabase(url)) as database:
            database.write(lambda connection, _: _change(connection, run_id))


def _change(connection: Connection, run_id: str) -> None:
    runs = schema.recorded_runs.c
    connection.execute(update(schema.recorded_runs).where(runs.run_id == run_id).values(changes=runs.changes + 1))
