"""Reads runs back from the store: what a page shows is read, never the whole run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, func, select

from fedprivacy.ledger.allowances import allowances_of
from fedprivacy.ledger.charges import NOTHING_SPENT, accounts_of
from fedprivacy.ledger.database import Database
from fedprivacy.ledger.dialects import among
from fedprivacy.ledger.schema import charges
from fedprivacy.ledger.schema import runs as ledger_runs
from fedprivacy.runs.store.rows import Failures, StoredCharge, StoredClient, StoredRound, StoredRun, Tally
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
from fedprivacy.values.budget import Allowance
from fedprivacy.values.events import History
from fedprivacy.values.nulls import or_infinite, or_nan
from fedprivacy.values.series import ClientCurves, RoundPoint, RunFacts, Spread, stride

T = TypeVar("T")

_FEW_NAMES = 8


@dataclass(frozen=True, slots=True)
class ClientQuery:
    """Which clients, in which order.

    Attributes:
        sort: a column of `recorded_clients`; equals stay in the order of enrolment.
        descending: the largest first. What has no bound or no budget counts as the largest.
        search: a part of the name; empty: any.
        state: see `ClientState`; empty: any.
        limit: how many at most.
        offset: how many of them to leave out first.
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
        url: of the ledger.
        patience: seconds for which a database that is locked or gone is tried again.

    Raises:
        LedgerError: it cannot be used, or an earlier version of fedprivacy made it.
    """

    def __init__(self, url: str, patience: float = 5.0) -> None:
        self.database = Database(url, patience, upgrade=False)

    def runs(self) -> list[StoredRun]:
        """Every run, the newest first."""
        return self._read(lambda connection: [_run(row) for row in connection.execute(_runs())])

    def run(self, run_id: str) -> StoredRun | None:
        """One run; None: there is none of this name."""

        def work(connection: Connection) -> StoredRun | None:
            row = connection.execute(_runs().where(recorded_runs.c.run_id == run_id)).one_or_none()
            return _run(row) if row else None

        return self._read(work)

    def changes(self) -> dict[str, int]:
        """How often each run has changed: cheap enough to ask many times a second."""
        wanted = select(recorded_runs.c.run_id, recorded_runs.c.changes)
        return self._read(lambda connection: {run_id: int(n) for run_id, n in connection.execute(wanted)})

    def rounds(self, run_id: str, numbers: Collection[int]) -> list[StoredRound]:
        """Some finished rounds, ascending; those that are not there are missing."""
        column = recorded_rounds.c.round
        wanted = (
            select(recorded_rounds).where(recorded_rounds.c.run_id == run_id, _of(column, numbers)).order_by(column)
        )
        return self._read(lambda connection: [_round(row) for row in connection.execute(wanted)])

    def state_counts(self, run_id: str) -> dict[str, int]:
        """How many clients are in each state; states without a client are missing."""
        state = recorded_clients.c.state
        wanted = select(state, func.count()).where(recorded_clients.c.run_id == run_id).group_by(state)
        return self._read(lambda connection: {name: int(n) for name, n in connection.execute(wanted)})

    def failed_updates(self, run_id: str) -> int:
        """How many updates of a run were asked for and not used: by its rounds, without a look at each failure."""
        wanted = select(func.sum(recorded_rounds.c.failed)).where(recorded_rounds.c.run_id == run_id)
        return self._read(lambda connection: int(connection.scalar(wanted) or 0))

    def tally(self, run_id: str) -> Tally:
        """A run's clients in few numbers, by one look at each: for whoever asks again and again."""
        clients, failed = recorded_clients.c, recorded_failures.c
        share = case((and_(clients.budget.is_not(None), clients.share.is_(None)), math.inf), else_=clients.share)
        by_state = select(clients.state, func.count(), func.min(clients.budget), func.max(share))
        by_reason = select(failed.reason, func.count())

        def work(connection: Connection) -> Tally:
            found = connection.execute(by_state.where(clients.run_id == run_id).group_by(clients.state)).all()
            times = connection.execute(by_reason.where(failed.run_id == run_id).group_by(failed.reason)).all()
            return Tally(
                states={state: int(n) for state, n, _, _ in found},
                least_budget=min((float(budget) for _, _, budget, _ in found if budget is not None), default=None),
                most_share=max((float(most) for _, _, _, most in found if most is not None), default=None),
                failures={reason: int(n) for reason, n in times},
            )

        return self._read(work)

    def clients(self, run_id: str, query: ClientQuery) -> tuple[int, list[StoredClient]]:
        """How many clients a query finds, and those on its page."""
        found = _matching(run_id, query)
        ordered = select(*_CLIENT).where(found).order_by(*_order(query)).limit(query.limit).offset(query.offset)

        def work(connection: Connection) -> tuple[int, list[StoredClient]]:
            total = connection.scalar(select(func.count()).select_from(recorded_clients).where(found))
            return int(total or 0), [StoredClient(*row) for row in connection.execute(ordered)]

        return self._read(work)

    def named_clients(self, run_id: str, client_ids: Sequence[str]) -> list[StoredClient]:
        """Clients by name, in the order of their enrolment; unknown ones are missing."""
        column = recorded_clients.c.client_id

        def work(connection: Connection) -> list[StoredClient]:
            mine = recorded_clients.c.run_id == run_id, among(connection.dialect, column, client_ids)
            wanted = select(*_CLIENT).where(*mine).order_by(recorded_clients.c.number)
            return [StoredClient(*row) for row in connection.execute(wanted)]

        return self._read(work)

    def budgets(self, run_id: str) -> list[float]:
        """The different finite budgets of a run's clients, ascending."""
        budget = recorded_clients.c.budget
        wanted = select(budget).where(recorded_clients.c.run_id == run_id, budget.is_not(None)).distinct()
        return self._read(lambda connection: sorted(map(float, connection.scalars(wanted).all())))

    def turns(self, run_id: str, most: int) -> list[tuple[int, float]]:
        """In which rounds clients were exhausted, and at which epsilon; of many, evenly spread over the rounds."""
        turn, epsilon = recorded_clients.c.exhausted_in, recorded_clients.c.epsilon
        exhausted = and_(recorded_clients.c.run_id == run_id, turn.is_not(None), epsilon.is_not(None))
        place = (func.row_number().over(order_by=(turn, epsilon)) - 1).label("place")
        turns = select(turn, epsilon, place).where(exhausted).group_by(turn, epsilon).subquery().c

        def work(connection: Connection) -> list[tuple[int, float]]:
            count = connection.scalar(select(func.count(turns.place))) or 0
            some = turns.place % stride(count, most) == 0
            wanted = select(turns.exhausted_in, turns.epsilon).where(some).order_by(turns.place)
            return [(int(number), float(spent)) for number, spent in connection.execute(wanted)]

        return self._read(work)

    def curves(self, run_id: str, clients: Sequence[StoredClient], rounds: Sequence[int]) -> ClientCurves:
        """The epsilons of some clients after some rounds."""
        numbers = np.array([client.number for client in clients], dtype=np.int64)
        return ClientCurves(
            client_ids=[client.client_id for client in clients],
            rounds=list(rounds),
            epsilons=self._read(lambda connection: _epsilons(connection, run_id, numbers, rounds)),
            exhausted_in=[client.exhausted_in for client in clients],
            budgets=[or_infinite(client.budget) for client in clients],
        )

    def failures(self, run_id: str) -> list[Failures]:
        """Updates that were asked for and not used, by reason, the most frequent first."""
        table = recorded_failures.c
        times = func.count()
        names, newest = func.count(table.client_id.distinct()), func.max(table.round)
        grouped = select(table.reason, times, names, newest).where(table.run_id == run_id)

        def work(connection: Connection) -> list[Failures]:
            rows = connection.execute(grouped.group_by(table.reason).order_by(times.desc(), table.reason)).all()
            return [
                Failures(reason, int(n), int(clients), _some_clients(connection, run_id, reason), int(newest))
                for reason, n, clients, newest in rows
            ]

        return self._read(work)

    def charges(
        self, run_id: str, *, client_id: str = "", round: int | None = None, state: str = "", limit: int, offset: int
    ) -> tuple[int, list[StoredCharge]]:
        """How many charges of a run the ledger holds, and a page of them, the newest first."""

        def work(connection: Connection) -> tuple[int, list[StoredCharge]]:
            prefix = _dataset_prefix(connection, run_id)
            mine = [charges.c.run_id == run_id]
            mine += [charges.c.dataset_id == prefix + client_id] * bool(client_id)
            mine += [charges.c.round == round] * (round is not None)
            mine += [charges.c.state == state] * bool(state)
            total = int(connection.scalar(select(func.count()).select_from(charges).where(*mine)) or 0)
            wanted = select(charges).where(*mine).order_by(charges.c.charge_id.desc()).limit(limit).offset(offset)
            rows = [dict(row) for row in connection.execute(wanted).mappings()]
            return total, [row | {"client_id": str(row["dataset_id"]).removeprefix(prefix)} for row in rows]

        return self._read(work)

    def account(self, run_id: str, client_id: str) -> tuple[History, Allowance | None]:
        """What the ledger holds of a client's dataset, over all runs, and its budget."""

        def work(connection: Connection) -> tuple[History, Allowance | None]:
            dataset = _dataset_prefix(connection, run_id) + client_id
            account = accounts_of(connection, [dataset]).get(dataset, NOTHING_SPENT)
            return account.history, allowances_of(connection, [dataset]).get(dataset)

        return self._read(work)

    def audits(self, run_id: str) -> list[AuditResult]:
        """What audits of a run found, in their order."""
        columns = [column for column in audits.c if column.name not in ("audit_id", "run_id")]
        wanted = select(*columns).where(audits.c.run_id == run_id).order_by(audits.c.audit_id)

        def work(connection: Connection) -> list[AuditResult]:
            rows = [dict(row) for row in connection.execute(wanted).mappings()]
            return [AuditResult(**row | {"upper": or_infinite(row["upper"])}) for row in rows]

        return self._read(work)

    def close(self) -> None:
        """Give back every connection."""
        self.database.close()

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self.database.read(work)


_CLIENT = [column for column in recorded_clients.c if column.name != "run_id"]
_ROUND = list(recorded_rounds.c)
_RUN = list(recorded_runs.c)


def _runs() -> Select[Any]:
    """Every run, with its newest round."""
    every = recorded_rounds.alias()
    newest = select(func.max(every.c.round)).where(every.c.run_id == recorded_runs.c.run_id).scalar_subquery()
    last = and_(recorded_rounds.c.run_id == recorded_runs.c.run_id, recorded_rounds.c.round == newest)
    joined = recorded_runs.outerjoin(recorded_rounds, last)
    return (
        select(*_RUN, *_ROUND[1:]).select_from(joined).order_by(recorded_runs.c.started.desc(), recorded_runs.c.run_id)
    )


def _run(row: Row[Any]) -> StoredRun:
    run = dict(zip((column.name for column in _RUN), row, strict=False))
    facts = RunFacts(
        run_id=run["run_id"],
        name=run["name"],
        settings=json.loads(run["settings"]),
        noise_multiplier=run["noise_multiplier"],
        relation=run["relation"],
        metric=run["metric"],
    )
    state = {name: run[name] for name in ("stage", "stage_round", "stage_clients", "started", "updated", "changes")}
    newest = row[len(_RUN) :]
    last = _round((run["run_id"], *newest)) if newest[0] is not None else None
    return StoredRun(facts=facts, status=RunStatus(run["status"]), last=last, **state)


def _round(row: Sequence[Any]) -> StoredRound:
    found: Mapping[str, Any] = dict(zip((column.name for column in _ROUND), row, strict=True))
    metrics = {name: or_nan(value) for name, value in json.loads(found["metrics"]).items()}
    counts = {name: found[name] for name in ("clients", "participants", "failed", "exhausted", "unreconciled")}
    spread = Spread(*np.frombuffer(found["epsilons"], dtype="<f8").tolist())
    return StoredRound(RoundPoint(round=found["round"], metrics=metrics, epsilons=spread, **counts), found["at"])


def _of(column: ColumnElement[int], numbers: Collection[int]) -> ColumnElement[bool]:
    """Whether a column is one of the numbers; a range needs two parameters, whatever its length."""
    if not isinstance(numbers, range) or not numbers:
        return column.in_(numbers)
    within = column.between(numbers[0], numbers[-1])
    return within if numbers.step == 1 else and_(within, column % numbers.step == numbers[0] % numbers.step)


def _matching(run_id: str, query: ClientQuery) -> ColumnElement[bool]:
    found = [recorded_clients.c.run_id == run_id]
    found += [recorded_clients.c.client_id.icontains(query.search, autoescape=True)] * bool(query.search)
    found += [recorded_clients.c.state == query.state] * bool(query.state)
    return and_(*found)


def _order(query: ClientQuery) -> list[ColumnElement[Any]]:
    """The order of a query, the same on every database: what is null has no bound, and is larger than any number."""
    column = recorded_clients.c[query.sort]
    missing = column.is_(None)
    order = [missing.desc(), column.desc()] if query.descending else [missing, column.asc()]
    return [*(order if column.nullable else order[1:]), recorded_clients.c.number]


def _epsilons(
    connection: Connection, run_id: str, numbers: NDArray[np.int64], rounds: Sequence[int]
) -> NDArray[np.float64]:
    """Shape [rounds, clients]; not a number where a client was not enrolled."""
    found = np.full((len(rounds), len(numbers)), np.nan)
    places = {number: place for place, number in enumerate(rounds)}
    table, parts = recorded_epsilons.c, numbers // CLIENTS_PER_PART
    for part in np.unique(parts).tolist():
        wanted = select(table.round, table.epsilons).where(
            table.run_id == run_id, table.part == part, _of(table.round, rounds)
        )
        columns = np.flatnonzero(parts == part)
        within = numbers[columns] - part * CLIENTS_PER_PART
        for number, packed in connection.execute(wanted):
            epsilons = np.frombuffer(packed, dtype="<f8")
            known = within < epsilons.size
            found[places[number], columns[known]] = epsilons[within[known]]
    return found


def _some_clients(connection: Connection, run_id: str, reason: str) -> tuple[str, ...]:
    table = recorded_failures.c
    mine = table.run_id == run_id, table.reason == reason
    wanted = select(table.client_id).where(*mine).distinct().order_by(table.client_id).limit(_FEW_NAMES)
    return tuple(connection.scalars(wanted))


def _dataset_prefix(connection: Connection, run_id: str) -> str:
    """What stands before a client's name in the names of a run's datasets (`fedprivacy.tasks.identity`)."""
    dataset = connection.scalar(select(ledger_runs.c.dataset).where(ledger_runs.c.run_id == run_id))
    return f"{dataset or ''}/"
