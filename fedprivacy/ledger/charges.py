"""Charges and budgets in the ledger's tables, the balances that charges add up to, and their changes by the journal.

Functions that write need a transaction with exclusive access to the ledger. Every change of an account or a budget
appends an entry that names the datasets, in the same transaction. So `read_changed`, which knows an account as of one
entry and reads the later entries, knows which accounts to read again; all others are unchanged.
"""

from __future__ import annotations

import datetime
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, Update, bindparam, func, or_, select, update

from fedprivacy._support.failpoints import reach
from fedprivacy.ledger import journal
from fedprivacy.ledger.database import Database, among, given, insert_rows, is_given, put_rows
from fedprivacy.ledger.journal import Head
from fedprivacy.ledger.replay import SETTLES, Evidence
from fedprivacy.ledger.schema import ChargeState, balances, budgets, charges, keys, runs
from fedprivacy.ledger.schema import journal as entries
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import ROW, UNNAMED, Claims, Event, History, PoissonSampledGaussian, as_row

SERVER_VIEW = "server"
"""View of a charge: the server sees each client's update in every round that the client joins."""


@dataclass(frozen=True, slots=True)
class Account:
    """Account of a dataset over all runs: the number of executions of each event, and the number of charges.

    RESERVED charges count, VOID ones do not.
    """

    history: History
    rounds: int


MOST_STEPS = 2**31 - 1
"""Maximum number of steps charged to a dataset: far beyond any budget, and as many as the accountants compose."""

NOTHING_SPENT = Account({}, 0)

Allowed = Callable[[str, History, Allowance], int]
"""(dataset_id, its history, its budget) -> number of further steps that the budget allows."""


def accounts_of(connection: Connection, dataset_ids: Collection[str]) -> dict[str, Account]:
    """Read each dataset's account; datasets that were charged nothing are missing."""
    dialect = connection.dialect.name
    return _accounts(connection.execute(_balances(dialect), given(dialect, dataset_ids)).all())


@cache
def _balances(dialect: str) -> Select[Any]:
    return select(balances).where(is_given(dialect, balances.c.dataset_id), balances.c.charges > 0)


def units_of(connection: Connection, dataset_ids: Collection[str]) -> dict[str, str]:
    """Read each dataset's unit of privacy, the same in all runs; datasets that no run has charged are missing."""
    mine = among(connection.dialect, charges.c.dataset_id, dataset_ids), charges.c.state != ChargeState.VOID
    of_runs = select(charges.c.dataset_id, runs.c.unit).where(charges.c.run_id == runs.c.run_id, *mine).distinct()
    return {row.dataset_id: row.unit for row in connection.execute(of_runs)}


def accounts_in_run(connection: Connection, run_id: str, dataset_ids: Collection[str]) -> dict[str, Account]:
    """Read each dataset's account in one run; datasets that were charged nothing are missing."""
    mine = charges.c.run_id == run_id, among(connection.dialect, charges.c.dataset_id, dataset_ids)
    return _accounts(connection.execute(_sum_charges().where(*mine)).all())


def _accounts(rows: Iterable[Sequence[Any]]) -> dict[str, Account]:
    """Make accounts from rows like those of the balances."""
    histories: dict[str, dict[Event, int]] = {}
    rounds: dict[str, int] = {}
    for dataset_id, q, sigma, relation, steps, count in rows:
        histories.setdefault(dataset_id, {})[_event(q, sigma, relation)] = int(steps)
        rounds[dataset_id] = rounds.get(dataset_id, 0) + int(count)
    return {dataset_id: Account(history, rounds[dataset_id]) for dataset_id, history in histories.items()}


_event = lru_cache(maxsize=65_536)(PoissonSampledGaussian)
"""Cached event: most datasets are charged for the same events."""


def allowances_of(connection: Connection, dataset_ids: Collection[str]) -> dict[str, Allowance]:
    """Read the budgets in force; datasets without one are missing."""
    dialect = connection.dialect.name
    rows = connection.execute(_budgets(dialect), given(dialect, dataset_ids))
    return {dataset_id: _allowance(*row) for dataset_id, *row in rows.all()}


@cache
def _budgets(dialect: str) -> Select[Any]:
    return select(budgets).where(is_given(dialect, budgets.c.dataset_id))


@lru_cache(maxsize=1024)
def _allowance(
    epsilon: float | None, delta: float, filter: str, expires: datetime.datetime | None, deliberate: bool
) -> Allowance:
    """Make a budget from its row, cached: most datasets have the same."""
    budget = PrivacyBudget(math.inf if epsilon is None else epsilon, delta)
    return Allowance(budget, filter, in_utc(expires), deliberate)


def in_utc(instant: datetime.datetime | None) -> datetime.datetime | None:
    """Convert an instant to UTC; SQLite has no time zones, and PostgreSQL may return another."""
    if instant is None:
        return None
    return instant.replace(tzinfo=datetime.UTC) if instant.tzinfo is None else instant.astimezone(datetime.UTC)


def budget_row(dataset_id: str, allowance: Allowance) -> dict[str, Any]:
    return {
        "dataset_id": dataset_id,
        "epsilon": allowance.budget.epsilon if allowance.budget.enforced else None,
        "delta": allowance.budget.delta,
        "filter": allowance.filter,
        "expires": allowance.expires,
        "deliberate": allowance.deliberate,
    }


def budget_fields(allowance: Allowance) -> list[Any]:
    """Return a budget as the journal writes it."""
    epsilon = allowance.budget.epsilon if allowance.budget.enforced else None
    return [epsilon, allowance.budget.delta, allowance.filter, allowance.expires and allowance.expires.isoformat()]


def within_budget(connection: Connection, wanted: Mapping[str, int], allowed: Allowed) -> dict[str, int]:
    """Return the smaller of wanted and allowed steps, by dataset; datasets with nothing left are missing."""
    accounts = accounts_of(connection, wanted.keys())
    in_force = allowances_of(connection, wanted.keys())
    granted = {
        dataset_id: min(
            steps, allowed(dataset_id, accounts.get(dataset_id, NOTHING_SPENT).history, in_force[dataset_id])
        )
        for dataset_id, steps in wanted.items()
        if not in_force[dataset_id].expired
    }
    return {dataset_id: steps for dataset_id, steps in granted.items() if steps > 0}


def charge(connection: Connection, attempt: Attempt, granted: Mapping[str, tuple[PoissonSampledGaussian, int]]) -> None:
    """Enter reserved charges of one attempt: event and steps by dataset, not empty."""
    events = sorted({event for event, _ in granted.values()})
    numbers = {event: number for number, event in enumerate(events)}
    entry = journal.append(
        connection,
        "charge",
        **attempt._asdict(),
        view=SERVER_VIEW,
        events=[as_row(event) for event in events],
        charges={dataset_id: [numbers[event], steps] for dataset_id, (event, steps) in granted.items()},
    )
    reach("ledger.journal-written")
    common = {**attempt._asdict(), "entry": entry, "view": SERVER_VIEW, "state": ChargeState.RESERVED}
    of_event = {event: common | _columns(event) for event in events}
    _insert(connection, [{**of_event[e], "dataset_id": d, "steps": n} for d, (e, n) in granted.items()])


def charge_difference(
    connection: Connection, dataset_id: str, run_id: str, event: PoissonSampledGaussian, *, claimed: int, held: int
) -> None:
    """Enter the steps that a client claims to have spent in a run beyond the ledger's count, as a charge of round 0."""
    own = charges.c.dataset_id == dataset_id, charges.c.run_id == run_id, charges.c.round == 0
    before = connection.scalar(select(func.count()).select_from(charges).where(*own)) or 0
    attempt = Attempt(run_id, 0, int(before) + 1)
    entry = journal.append(
        connection,
        "reconciliation",
        dataset_id=dataset_id,
        run_id=run_id,
        attempt=attempt.attempt,
        view=SERVER_VIEW,
        event=as_row(event),
        client_steps=claimed,
        server_steps=held,
    )
    common = {"dataset_id": dataset_id, "entry": entry, "view": SERVER_VIEW, "state": ChargeState.COMMITTED}
    _insert(connection, [{**attempt._asdict(), **common, "steps": claimed - held, **_columns(event)}])


def settle_charges(
    connection: Connection, attempt: Attempt, receipts: Mapping[str, Evidence | None], state: ChargeState
) -> None:
    """Change the state of charges where the change is new, with the receipts by dataset; None: not signed.

    A receipt signed with a key that its client has replaced meanwhile confirms the charge, and is not kept as evidence:
    whoever stole the key could have signed it.
    """
    statements, values = _settling(connection.dialect.name, state), _attempt_values(connection, attempt, receipts)
    changing = connection.execute(statements.select, values).mappings().all()
    if not changing:
        return
    settled = {row["dataset_id"]: receipts[row["dataset_id"]] for row in changing}
    signers = {name: key_hash(made.public_key.encode()) for name, made in settled.items() if made}
    if signers:
        present = select(keys.c.key_hash).where(among(connection.dialect, keys.c.key_hash, signers.values()))
        bound = set(connection.scalars(present))
        settled |= {name: None for name, signer in signers.items() if signer not in bound}
    journal.append(connection, "settlement", **attempt._asdict(), state=state, receipts=settled)
    connection.execute(statements.update, values)
    for was_void, sign in ((False, -1), (True, 1)):  # subtract charges that become void, add those that were void
        if was_void or state is ChargeState.VOID:
            _count(connection, [dict(row) for row in changing if (row["state"] is ChargeState.VOID) is was_void], sign)


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    insert_rows(connection, charges, rows)
    _count(connection, rows, 1)


def _count(connection: Connection, rows: Iterable[Mapping[str, Any]], sign: int) -> None:
    """Add charges to the balances, or subtract them."""
    key = [column.name for column in balances.primary_key]
    signed = [{name: row[name] for name in key} | {"steps": sign * row["steps"], "charges": sign} for row in rows]
    put_rows(connection, balances, signed, sums=("steps", "charges"))


def _columns(event: PoissonSampledGaussian) -> dict[str, Any]:
    return dict(zip(ROW, as_row(event), strict=True))


def charged_for(attempt: Attempt) -> tuple[ColumnElement[bool], ...]:
    """Return the condition of the charges for an attempt."""
    return tuple(charges.c[name] == value for name, value in attempt._asdict().items())


def _matches_attempt(dialect: str) -> tuple[ColumnElement[bool], ...]:
    """Return the condition of the charges for the attempt and one of the datasets in `_attempt_values`."""
    of_attempt = (charges.c[name] == bindparam(f"{name}_charged") for name in Attempt._fields)
    return *of_attempt, is_given(dialect, charges.c.dataset_id)


def _attempt_values(connection: Connection, attempt: Attempt, dataset_ids: Collection[str]) -> dict[str, Any]:
    """Return the parameters of a statement with `_matches_attempt`."""
    of_attempt = {f"{name}_charged": value for name, value in attempt._asdict().items()}
    return of_attempt | given(connection.dialect.name, dataset_ids)


class _Settling(NamedTuple):
    """The charges for an attempt that get a state, read and written."""

    select: Select[Any]
    update: Update


@cache
def _settling(dialect: str, state: ChargeState) -> _Settling:
    news = *_matches_attempt(dialect), charges.c.state.in_(SETTLES[state])
    return _Settling(select(charges).where(*news), update(charges).where(*news).values(state=state))


def charged_steps(
    connection: Connection, attempt: Attempt, events: Mapping[str, PoissonSampledGaussian]
) -> dict[str, int]:
    """Return the steps charged for an attempt, by dataset; 0 if the charge is void or for another event than given."""
    rows = connection.execute(_charged_steps(connection.dialect.name), _attempt_values(connection, attempt, events))
    return {
        dataset_id: 0 if state is ChargeState.VOID or _event(*event) != events[dataset_id] else steps
        for dataset_id, state, steps, *event in rows
    }


@cache
def _charged_steps(dialect: str) -> Select[Any]:
    columns = ("dataset_id", "state", "steps", *ROW)
    return select(*(charges.c[name] for name in columns)).where(*_matches_attempt(dialect))


def steps_of_run(connection: Connection, dataset_id: str, run_id: str, event: PoissonSampledGaussian) -> int:
    """Return the steps that a dataset was charged in one run for one event."""
    mine = select(func.sum(charges.c.steps)).where(
        charges.c.dataset_id == dataset_id,
        charges.c.run_id == run_id,
        charges.c.state != ChargeState.VOID,
        *(charges.c[name] == value for name, value in _columns(event).items()),
    )
    return int(connection.scalar(mine) or 0)


def held_of(connection: Connection, dataset_id: str, claims: Claims) -> dict[tuple[str, PoissonSampledGaussian], int]:
    """Return the steps that the ledger holds of each claim.

    Claims of no named run are compared with all steps that no named claim covers: a ledger that knows the runs of such
    steps holds them already.
    """
    named = {claim: steps_of_run(connection, dataset_id, *claim) for claim in claims if claim[0] != UNNAMED}
    account = accounts_of(connection, [dataset_id]).get(dataset_id, NOTHING_SPENT)
    rest: Counter[Event] = Counter(account.history)
    for (run_id, event), held in named.items():
        rest[event] -= min(claims[run_id, event], held)
    return {claim: named.get(claim, rest[claim[1]]) for claim in claims}


def check_balances(connection: Connection) -> bool:
    """Return whether the balances equal the sums of the charges."""
    summed = _sum_charges()
    kept = select(balances).where(or_(balances.c.charges != 0, balances.c.steps != 0))
    return not any(connection.execute(one.except_(other)).first() for one, other in ((summed, kept), (kept, summed)))


def _sum_charges() -> Select[Any]:
    """Sum the charges, in rows like those of the balances."""
    mechanism = [charges.c[column.name] for column in balances.primary_key]
    counted = select(*mechanism, func.sum(charges.c.steps), func.count())
    return counted.where(charges.c.state != ChargeState.VOID).group_by(*mechanism)


class ChangedAccounts(NamedTuple):
    """Accounts and budgets of some datasets at one moment.

    Attributes:
        head: newest entry of the journal.
        dataset_ids: datasets whose accounts were read.
        accounts: accounts by dataset; datasets that were charged nothing are missing.
        allowances: budgets in force.
    """

    head: Head
    dataset_ids: Collection[str]
    accounts: Mapping[str, Account]
    allowances: Mapping[str, Allowance]


def read_changed(connection: Connection, known: Set[str], since: Head, unread: Set[str]) -> ChangedAccounts:
    """Read the accounts of those datasets that were written about since another reading.

    Args:
        connection: connection in a transaction that sees one state of the ledger.
        known: datasets of interest.
        since: newest entry of the journal at the other reading.
        unread: datasets among them that are read in any case.
    """
    now = journal.head(connection)
    changed = unread if now == since else _named_since(connection, since)
    wanted = known if changed is None else (changed & known) | unread
    if not wanted:
        return ChangedAccounts(now, (), {}, {})
    return ChangedAccounts(now, wanted, accounts_of(connection, wanted), allowances_of(connection, wanted))


def _named_since(connection: Connection, since: Head) -> set[str] | None:
    """Return the datasets whose accounts or budgets later entries change; None: the journal does not hold `since`."""
    if since == Head():
        return None
    held = connection.scalar(select(entries.c.hash).where(entries.c.number == since.number))
    if held != since.hash:  # an older copy was restored
        return None
    named: set[str] = set()
    for entry in connection.scalars(select(entries.c.entry).where(entries.c.number > since.number)):
        facts = json.loads(entry)
        named.update(_NAMED[facts["kind"]](facts))
    return named


_NAMED: Mapping[str, Callable[[Mapping[str, Any]], Iterable[str]]] = {
    "run": lambda _: (),
    "key": lambda _: (),
    "answer": lambda _: (),
    "budget": lambda entry: entry["budgets"],
    "charge": lambda entry: entry["charges"],
    "settlement": lambda entry: entry["receipts"],
    "reconciliation": lambda entry: (entry["dataset_id"],),
}
"""Functions, by kind of entry, that return the datasets whose account or budget the entry changes; see `replay`."""

_BUDGETS = '%"kind":"budget"%'
"""Pattern of such entries: within a text of theirs the quotes would be escaped."""


class BudgetChange(NamedTuple):
    """A budget that a dataset was given.

    Attributes:
        at: time, in ISO 8601.
        epsilon: budget over all runs; None: losses are only measured.
        delta: delta of the budget.
        expires: time from which nothing is granted, in ISO 8601; None: never.
        reason: reason that was given; None: its first run brought it.
        by: who changed it, as they said, or the account of the operating system that did; empty: unknown.
    """

    at: str
    epsilon: float | None
    delta: float
    expires: str | None
    reason: str | None
    by: str


def budget_changes(
    database: Database, dataset_ids: Collection[str], last: int | None = None
) -> dict[str, list[BudgetChange]]:
    """Read the budgets that datasets were given, in order, from the journal.

    Args:
        database: database of the ledger.
        dataset_ids: datasets; one that is unknown has no budgets.
        last: number of the last entry that counts; None: all do.
    """
    found: dict[str, list[BudgetChange]] = {dataset_id: [] for dataset_id in dataset_ids}
    wanted = select(entries.c.entry).where(entries.c.entry.like(_BUDGETS)).order_by(entries.c.number)
    if last is not None:
        wanted = wanted.where(entries.c.number <= last)
    with database.reading() as connection:
        for (text,) in connection.execution_options(yield_per=1000).execute(wanted):
            entry = json.loads(text)
            for dataset_id in found.keys() & entry["budgets"].keys():
                epsilon, delta, _, expires = entry["budgets"][dataset_id]
                said = entry.get("reason"), entry.get("by", "")
                found[dataset_id].append(BudgetChange(entry["at"], epsilon, delta, expires, *said))
    return found
