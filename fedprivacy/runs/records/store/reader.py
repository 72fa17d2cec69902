"""Reads runs back from the store: what a page shows is read, never the whole run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, case, func, select

from fedprivacy.ledger.charges import NOTHING_SPENT, accounts_of
from fedprivacy.ledger.database import Database, among, database_file, file_url
from fedprivacy.ledger.schema import audits, charges
from fedprivacy.ledger.schema import runs as ledger_runs
from fedprivacy.runs.records.store.database import IN_MEMORY, RECORD, RecordDatabase, has_runs
from fedprivacy.runs.records.store.schema import (
    CLIENTS_PER_PART,
    EPSILONS,
    audit_of,
    client_of,
    point_of,
    recorded_clients,
    recorded_epsilons,
    recorded_failures,
    recorded_rounds,
    recorded_runs,
    standing_of,
)
from fedprivacy.runs.records.store.writer import RunRecording
from fedprivacy.runs.settings.fields import LEDGER
from fedprivacy.values.events import History
from fedprivacy.values.runs import AuditResult, Failures, RoundResult, RunStanding, RunTally
from fedprivacy.values.series import ClientCurves, RoundPoint, RunFacts, stride
from fedprivacy.values.spent import ClientStanding

T = TypeVar("T")

StoredCharge = Mapping[str, Any]
"""A charge by the columns of the ledger's `charges`, and `client_id`."""

_FEW_CLIENTS = 200
"""Maximum number of clients whose curves are all read; more are summarised as a fan."""

_FEW_NAMES = 8


def audits_in(database: Database) -> dict[str, list[AuditResult]]:
    """Read the results of every run's audits, in their order, by run_id."""
    every = select(audits).order_by(audits.c.audit_id)
    found: dict[str, list[AuditResult]] = {}
    for row in database.read(lambda connection: connection.execute(every).mappings().all()):
        found.setdefault(str(row["run_id"]), []).append(audit_of(row))
    return found


@dataclass(frozen=True, slots=True)
class ClientQuery:
    """A selection of clients: a part of their name and their `ClientState` (empty: any), the page, and the order.

    `sort` is a column of `recorded_clients`. Equals stay in the order of enrolment; what has no bound or no budget
    counts as the largest.
    """

    sort: str = "epsilon"
    descending: bool = True
    search: str = ""
    state: str = ""
    limit: int = 50
    offset: int = 0


class RunStore:
    """The runs in one database. Safe for concurrent use; every method reads one state.

    Args:
        place: URL of the store in a run's folder, or of a ledger, or an open database.
        patience: seconds for which a database that is locked or gone is tried again.

    Raises:
        LedgerError: it cannot be used, or another version of fedprivacy made it.
    """

    def __init__(self, place: str | RecordDatabase, patience: float = 5.0) -> None:
        file = database_file(place) if isinstance(place, str) else None
        self.folder = file.parent if file and file.name == RECORD else None
        self.few = _FEW_CLIENTS if isinstance(place, str) else math.inf
        self._patience, self._ledger = patience, None
        if isinstance(place, RecordDatabase):
            self.database: Database = place
        elif self.folder:
            self.database = RecordDatabase(place, patience, writes=False)
        else:
            self.database = self._ledger = Database(place, patience, create=False)
        self._there = False

    def runs(self) -> list[RunStanding]:
        """Every run, the newest first."""
        return self._read(lambda connection: [standing_of(row) for row in connection.execute(_RUNS).mappings()], [])

    def run(self, run_id: str) -> StoredRun | None:
        """One run, as it stands now; None: there is none of this name."""
        wanted = _RUNS.where(recorded_runs.c.run_id == run_id)
        row = self._read(lambda connection: connection.execute(wanted).mappings().one_or_none(), None)
        return StoredRun(self, standing_of(row)) if row else None

    def changes(self) -> dict[str, int]:
        """Number of changes of each run, by run_id: cheap enough to ask for many times a second."""
        wanted = select(recorded_runs.c.run_id, recorded_runs.c.changes)
        return self._read(lambda connection: {run_id: int(n) for run_id, n in connection.execute(wanted)}, {})

    def ledger_of(self, facts: RunFacts) -> Database | None:
        """The ledger that a run charges; None: it is not there. A run that has just begun has none yet."""
        if self._ledger is None and self.folder:
            named = str(facts.settings.get("ledger") or "")
            file = database_file(named) if named else self.folder / LEDGER
            if file and file.is_file():
                self._ledger = Database(file_url(file), self._patience, create=False)
        return self._ledger

    def close(self) -> None:
        """Give back every connection."""
        for database in (self.database, self._ledger):
            if database:
                database.close()

    def _read(self, work: Callable[[Connection], T], nothing: T) -> T:
        """Read, if a run was ever recorded in the database."""
        self._there = self._there or self.database.read(partial(has_runs, name=self.database.name))
        return self.database.read(work) if self._there else nothing


def in_memory(facts: RunFacts, results: Sequence[RoundResult]) -> StoredRun:
    """Return the reader of a run whose results are in memory."""
    recording = RunRecording(IN_MEMORY, facts)
    for result in results:
        recording.add(result)
    recording.flush()
    run = RunStore(recording.database).run(facts.run_id)
    assert run is not None
    return run


class StoredRun:
    """One run in a store: `now` is as it stood when somebody last looked, every method reads one state.

    It reads no more than is asked for, however large the run is. Safe for concurrent use.
    """

    def __init__(self, store: RunStore, now: RunStanding) -> None:
        self.store, self.now = store, now
        self.facts, self.finished = now.facts, now.finished

    def points(self, rounds: Collection[int]) -> list[RoundPoint]:
        """Some finished rounds, ascending; those that are not there are missing."""
        column = recorded_rounds.c.round
        wanted = select(recorded_rounds).where(self._mine(recorded_rounds), _of(column, rounds)).order_by(column)
        return self._read(lambda connection: [point_of(row) for row in connection.execute(wanted).mappings()])

    def everybody(self) -> list[ClientStanding]:
        """All clients, in the order of their enrolment."""
        return self._read(lambda connection: self._clients(connection, self._mine(recorded_clients)))

    def spenders(self, most: int, *, least: bool = False) -> list[ClientStanding]:
        """So many of the clients that spent most, or least."""
        query = ClientQuery(descending=not least, limit=most)
        return self._read(lambda connection: self._page(connection, query))

    def standings_of(self, client_ids: Sequence[str]) -> list[ClientStanding]:
        """Clients by name, in the order of their enrolment; unknown ones are missing."""

        def work(connection: Connection) -> list[ClientStanding]:
            known = among(connection.dialect, recorded_clients.c.client_id, client_ids)
            return self._clients(connection, and_(self._mine(recorded_clients), known))

        return self._read(work)

    def clients(self, query: ClientQuery) -> tuple[int, list[ClientStanding]]:
        """Number of clients that a query finds, and those on its page."""
        total = select(func.count()).select_from(recorded_clients).where(self._matching(query))
        return self._read(lambda connection: (int(connection.scalar(total) or 0), self._page(connection, query)))

    def tally(self) -> RunTally:
        """A run's clients in few numbers, by one look at each, for repeated queries."""
        clients, failed = recorded_clients.c, recorded_failures.c
        share = case(
            (and_(clients.budget_epsilon.is_not(None), clients.share.is_(None)), math.inf), else_=clients.share
        )
        by_state = select(recorded_clients.c.state, func.count(), func.min(clients.budget_epsilon), func.max(share))
        by_reason = select(failed.reason, func.count())

        def work(connection: Connection) -> RunTally:
            found = connection.execute(
                by_state.where(self._mine(recorded_clients)).group_by(recorded_clients.c.state)
            ).all()
            times = connection.execute(by_reason.where(self._mine(recorded_failures)).group_by(failed.reason)).all()
            return RunTally(
                states={state: int(n) for state, n, _, _ in found},
                least_budget=min((float(budget) for _, _, budget, _ in found if budget is not None), default=None),
                most_share=max((float(most) for _, _, _, most in found if most is not None), default=None),
                failures={reason: int(n) for reason, n in times},
            )

        return self._read(work)

    def budgets(self) -> list[float]:
        """The different finite budgets of a run's clients, ascending."""
        budget = recorded_clients.c.budget_epsilon
        wanted = select(budget).where(self._mine(recorded_clients), budget.is_not(None)).distinct()
        return self._read(lambda connection: sorted(map(float, connection.scalars(wanted).all())))

    def turns(self, most: int) -> list[tuple[int, float]]:
        """Pairs of round and epsilon at which clients were exhausted; of many, some spread evenly over the rounds."""
        turn, epsilon = recorded_clients.c.exhausted_in, recorded_clients.c.epsilon
        exhausted = and_(self._mine(recorded_clients), turn.is_not(None), epsilon.is_not(None))
        place = (func.row_number().over(order_by=(turn, epsilon)) - 1).label("place")
        turns = select(turn, epsilon, place).where(exhausted).group_by(turn, epsilon).subquery().c

        def work(connection: Connection) -> list[tuple[int, float]]:
            count = connection.scalar(select(func.count(turns.place))) or 0
            some = turns.place % stride(count, most) == 0
            wanted = select(turns.exhausted_in, turns.epsilon).where(some).order_by(turns.place)
            return [(int(number), float(spent)) for number, spent in connection.execute(wanted)]

        return self._read(work)

    def curves(self, clients: Sequence[ClientStanding], rounds: Sequence[int]) -> ClientCurves:
        """The epsilons of some clients after some rounds."""
        numbers = np.array([client.number for client in clients], dtype=np.int64)
        wanted = select(recorded_epsilons).where(self._mine(recorded_epsilons), _of(recorded_epsilons.c.round, rounds))
        epsilons = self._read(lambda connection: _epsilons(connection, wanted, numbers, rounds))
        return ClientCurves(clients, rounds, epsilons)

    def failures(self) -> list[Failures]:
        """Updates that were asked for and not used, by reason, the most frequent first."""
        table = recorded_failures.c
        times = func.count()
        names, newest = func.count(table.client_id.distinct()), func.max(table.round)
        grouped = select(table.reason, times, names, newest).where(self._mine(recorded_failures))

        def work(connection: Connection) -> list[Failures]:
            rows = connection.execute(grouped.group_by(table.reason).order_by(times.desc(), table.reason)).all()
            return [
                Failures(reason, int(n), int(clients), self._some_clients(connection, reason), int(newest))
                for reason, n, clients, newest in rows
            ]

        return self._read(work)

    def charges(
        self, *, client_id: str = "", round: int | None = None, state: str = "", limit: int, offset: int
    ) -> tuple[int, list[StoredCharge]]:
        """Number of the run's charges in the ledger, and a page of them, the newest first."""

        def work(connection: Connection) -> tuple[int, list[StoredCharge]]:
            prefix = self._dataset_prefix(connection)
            mine = [self._mine(charges)]
            mine += [charges.c.dataset_id == prefix + client_id] * bool(client_id)
            mine += [charges.c.round == round] * (round is not None)
            mine += [charges.c.state == state] * bool(state)
            total = int(connection.scalar(select(func.count()).select_from(charges).where(*mine)) or 0)
            wanted = select(charges).where(*mine).order_by(charges.c.charge_id.desc()).limit(limit).offset(offset)
            rows = [dict(row) for row in connection.execute(wanted).mappings()]
            return total, [row | {"client_id": str(row["dataset_id"]).removeprefix(prefix)} for row in rows]

        return self._read_ledger(work) or (0, [])

    def history_of(self, client_id: str) -> History:
        """The history of a client's dataset in the ledger, over all runs."""

        def work(connection: Connection) -> History:
            dataset = self._dataset_prefix(connection) + client_id
            return accounts_of(connection, [dataset]).get(dataset, NOTHING_SPENT).history

        return self._read_ledger(work) or {}

    def audits(self) -> list[AuditResult]:
        """Results of the audits of a run, in their order."""
        wanted = select(audits).where(self._mine(audits)).order_by(audits.c.audit_id)
        found = self._read_ledger(lambda connection: [audit_of(row) for row in connection.execute(wanted).mappings()])
        return found or []

    def _read_ledger(self, work: Callable[[Connection], T]) -> T | None:
        """Read the ledger; None: it is not there."""
        ledger = self.store.ledger_of(self.facts)
        return ledger.read(work) if ledger else None

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self.store.database.read(work)

    def _mine(self, table: Table) -> ColumnElement[bool]:
        """The condition that a row belongs to this run."""
        return table.c.run_id == self.facts.run_id

    def _clients(self, connection: Connection, wanted: ColumnElement[bool]) -> list[ClientStanding]:
        ordered = select(recorded_clients).where(wanted).order_by(recorded_clients.c.number)
        return [client_of(row, self.facts.rounds) for row in connection.execute(ordered).mappings()]

    def _page(self, connection: Connection, query: ClientQuery) -> list[ClientStanding]:
        ordered = select(recorded_clients).where(self._matching(query)).order_by(*_order(query))
        page = ordered.limit(query.limit).offset(query.offset)
        return [client_of(row, self.facts.rounds) for row in connection.execute(page).mappings()]

    def _matching(self, query: ClientQuery) -> ColumnElement[bool]:
        found = [self._mine(recorded_clients)]
        found += [recorded_clients.c.client_id.icontains(query.search, autoescape=True)] * bool(query.search)
        found += [recorded_clients.c.state == query.state] * bool(query.state)
        return and_(*found)

    def _some_clients(self, connection: Connection, reason: str) -> tuple[str, ...]:
        """Those whose updates were not used for a reason."""
        table = recorded_failures.c
        mine = self._mine(recorded_failures), table.reason == reason
        wanted = select(table.client_id).where(*mine).distinct().order_by(table.client_id).limit(_FEW_NAMES)
        return tuple(connection.scalars(wanted))

    def _dataset_prefix(self, connection: Connection) -> str:
        """The prefix of a client's name in the names of a run's datasets (`fedprivacy.tasks.identity`)."""
        dataset = connection.scalar(select(ledger_runs.c.dataset).where(self._mine(ledger_runs)))
        return f"{dataset or ''}/"


def _runs() -> Select[Any]:
    """Every run, with its newest round."""
    every = recorded_rounds.alias()
    newest = select(func.max(every.c.round)).where(every.c.run_id == recorded_runs.c.run_id).scalar_subquery()
    last = and_(recorded_rounds.c.run_id == recorded_runs.c.run_id, recorded_rounds.c.round == newest)
    of_round = [column for column in recorded_rounds.c if column.name != "run_id"]
    joined = select(recorded_runs, *of_round).select_from(recorded_runs.outerjoin(recorded_rounds, last))
    return joined.order_by(recorded_runs.c.started.desc(), recorded_runs.c.run_id)


_RUNS = _runs()


def _of(column: ColumnElement[int], numbers: Collection[int]) -> ColumnElement[bool]:
    """The condition that a column is one of the numbers; a range needs two parameters, whatever its length."""
    if not isinstance(numbers, range) or not numbers:
        return column.in_(numbers)
    within = column.between(numbers[0], numbers[-1])
    return within if numbers.step == 1 else and_(within, column % numbers.step == numbers[0] % numbers.step)


def _order(query: ClientQuery) -> list[ColumnElement[Any]]:
    """The order of a query, the same on every database: what is null has no bound, and is larger than any number."""
    column = recorded_clients.c[query.sort]
    missing = column.is_(None)
    order = [missing.desc(), column.desc()] if query.descending else [missing, column.asc()]
    return [*(order if column.nullable else order[1:]), recorded_clients.c.number]


def _epsilons(
    connection: Connection, wanted: Select[Any], numbers: NDArray[np.int64], rounds: Sequence[int]
) -> NDArray[np.float64]:
    """Shape [rounds, clients]; not a number where a client was not enrolled."""
    found = np.full((len(rounds), len(numbers)), np.nan)
    places = {number: place for place, number in enumerate(rounds)}
    parts = numbers // CLIENTS_PER_PART
    for part in np.unique(parts).tolist():
        columns = np.flatnonzero(parts == part)
        within = numbers[columns] - part * CLIENTS_PER_PART
        for row in connection.execute(wanted.where(recorded_epsilons.c.part == part)):
            epsilons = np.frombuffer(row.epsilons, dtype=EPSILONS)
            known = within < epsilons.size
            found[places[row.round], columns[known]] = epsilons[within[known]]
    return found
