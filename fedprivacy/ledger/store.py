"""The ledger: the durable record of what every dataset was charged, over all runs."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Select,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError

from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import Event, History, PoissonSampledGaussian
from fedprivacy.ledger.schema import ChargeState, balances, budgets, charges, keys, metadata, runs

SERVER_VIEW = "server"
"""Whose eyes a charge is for: the server sees each client's update in every round that the client joins."""


class LedgerError(ValueError):
    """The ledger cannot be opened, or holds something that contradicts what is asked, with the remedy."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A dataset's budget and the filter that enforces it.

    Attributes:
        budget: over all runs on the dataset.
        filter: name of the filter, see `fedprivacy.accounting.FILTERS`.
    """

    budget: PrivacyBudget
    filter: str


@dataclass(frozen=True, slots=True)
class Account:
    """What a dataset has been charged so far.

    Attributes:
        history: every event and how often it was charged; VOID charges are left out, RESERVED ones count.
        rounds: number of charges that count, over all runs.
    """

    history: History
    rounds: int


NOTHING_SPENT = Account({}, 0)


class Ledger:
    """Charges by (dataset_id, run_id, round, attempt), in an SQL database.

    Every method is one transaction that has the database to itself, so two runs that charge the same dataset cannot
    both read the same balance.
    """

    def __init__(self, url: str) -> None:
        """Open or create the ledger.

        Args:
            url: `sqlite:///path/to/ledger.db`.

        Raises:
            LedgerError: no such place, or not an SQLite URL.
        """
        self.url = url
        try:
            self._engine = _connect(url)
            metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                _mend_balances(connection)
        except (OperationalError, OSError) as error:
            raise LedgerError(f"ledger is '{url}', which cannot be opened ({error}); name a writable file.") from error

    @staticmethod
    def exists(url: str) -> bool:
        """Whether there is a ledger at `url` already."""
        return bool(url) and database_file(url).is_file()

    def open_run(self, run_id: str, dataset: str, partition: str) -> int:
        """Enter a run.

        Returns:
            How many runs on the same records the ledger held before.

        Raises:
            LedgerError: an earlier run on the same records split them in another way. The same record would then count
                in two datasets and neither would show what it lost.
        """
        with self._transaction() as connection:
            earlier = select(runs.c.partition).where(runs.c.dataset == dataset, runs.c.partition != partition)
            other = connection.scalars(earlier).first()
            if other is not None:
                raise LedgerError(
                    f"ledger {self.url} holds runs on {dataset} split as '{other}', and this run splits them as "
                    f"'{partition}': a record's loss could no longer be added up. Use another ledger."
                )
            earlier_runs = connection.scalar(select(func.count()).where(runs.c.dataset == dataset))
            connection.execute(
                insert(runs).values(run_id=run_id, dataset=dataset, partition=partition, started_at=_now())
            )
            return int(earlier_runs or 0)

    def bind_keys(self, key_hashes: Mapping[str, str]) -> None:
        """Bind clients to the keys that they first came with.

        Raises:
            LedgerError: a known client comes with another key, or a known key under another name: an account would be
                somebody else's, or begin anew.
        """
        with self._transaction() as connection:
            rows = connection.execute(select(keys)).all()
            known = {row.client_id: row.key_hash for row in rows}
            owners = {row.key_hash: row.client_id for row in rows}
            for client_id, key_hash in key_hashes.items():
                if known.get(client_id, key_hash) != key_hash:
                    raise LedgerError(
                        f"client {client_id} comes with another key than ledger {self.url} knows: somebody may have "
                        f"taken its name. If it renewed its key: 'fedprivacy ledger rebind {client_id} KEY.pub'."
                    )
                if owners.get(key_hash, client_id) != client_id:
                    raise LedgerError(
                        f"client {client_id} comes with the key of {owners[key_hash]}, so its records have an account "
                        "already. Register it under that name again."
                    )
                if client_id not in known:
                    connection.execute(insert(keys).values(client_id=client_id, key_hash=key_hash))
                    known[client_id], owners[key_hash] = key_hash, client_id

    def rebind_key(self, client_id: str, key_hash: str) -> None:
        """Let a client's account go on under a new key.

        Raises:
            LedgerError: the ledger does not know the client.
        """
        with self._transaction() as connection:
            statement = update(keys).where(keys.c.client_id == client_id).values(key_hash=key_hash)
            if connection.execute(statement).rowcount == 0:
                raise LedgerError(f"ledger {self.url} knows no client '{client_id}'; name one that took part in a run.")

    def open_budgets(self, allowances: Mapping[str, Allowance]) -> None:
        """Enter each dataset's budget, once for all runs.

        Raises:
            LedgerError: a dataset already has another budget or filter.
        """
        with self._transaction() as connection:
            known = _allowances(connection, allowances.keys())
            for dataset_id, allowance in known.items():
                if allowance != allowances[dataset_id]:
                    raise LedgerError(_contradiction(self.url, dataset_id, allowance, allowances[dataset_id]))
            new = [_budget_row(dataset_id, a) for dataset_id, a in allowances.items() if dataset_id not in known]
            if new:
                connection.execute(insert(budgets), new)

    def accounts(self, dataset_ids: Collection[str]) -> dict[str, Account]:
        """What each dataset has been charged, over all runs."""
        with self._transaction() as connection:
            return _accounts(connection, dataset_ids)

    def reserve(
        self,
        run_id: str,
        round: int,
        event: PoissonSampledGaussian | Mapping[str, PoissonSampledGaussian],
        wanted: Mapping[str, int],
        allowed: Callable[[str, History], int],
    ) -> dict[str, int]:
        """Charge steps before they are executed.

        Args:
            run_id: the run.
            round: the round.
            event: what each step costs: one event for all, or one by dataset.
            wanted: steps by dataset.
            allowed: (dataset_id, its history) -> how many more steps its budget allows.

        Returns:
            Steps reserved by dataset: the smaller of wanted and allowed; datasets with nothing left are missing.
        """
        with self._transaction() as connection:
            accounts = _accounts(connection, wanted.keys())
            granted = {
                dataset_id: min(steps, allowed(dataset_id, accounts.get(dataset_id, NOTHING_SPENT).history))
                for dataset_id, steps in wanted.items()
            }
            granted = {dataset_id: steps for dataset_id, steps in granted.items() if steps > 0}
            if granted:
                events = dict.fromkeys(granted, event) if isinstance(event, PoissonSampledGaussian) else event
                rows = [_charge_row(d, run_id, round, events[d], steps) for d, steps in granted.items()]
                connection.execute(insert(charges), rows)
                _add_to_balances(connection, [row | {"charges": 1} for row in rows])
            return granted

    def settle(self, run_id: str, round: int, dataset_ids: Collection[str], state: ChargeState) -> None:
        """Turn the reserved charges of a round into `state`; charges in any other state stay as they are."""
        reserved = (
            charges.c.run_id == run_id,
            charges.c.round == round,
            _among(charges.c.dataset_id, dataset_ids),
            charges.c.state == ChargeState.RESERVED,
        )
        with self._transaction() as connection:
            if state is ChargeState.VOID:
                returned = connection.execute(select(charges).where(*reserved)).mappings().all()
                _add_to_balances(connection, [{**row, "steps": -row["steps"], "charges": -1} for row in returned])
            connection.execute(update(charges).where(*reserved).values(state=state))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError as error:
            raise LedgerError(
                f"ledger {self.url}: this round of this run was charged before; nothing was added."
            ) from error
        except OperationalError as error:
            raise LedgerError(f"ledger {self.url} cannot be used: {error.orig}. Nothing was charged.") from error


def database_file(url: str) -> Path:
    """The file of a ledger's URL.

    Raises:
        LedgerError: it is no URL, of no SQLite database, or of one in memory: such a ledger forgets.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError(f"ledger is '{url}', which is no URL; write sqlite:///path/to/ledger.db.") from None
    in_memory = not parsed.database or ":memory:" in parsed.database or parsed.database.startswith("file:")
    if parsed.get_backend_name() != "sqlite" or in_memory or parsed.query:
        raise LedgerError(f"ledger is '{url}'; it must be an SQLite file on disk: write sqlite:///path/to/ledger.db.")
    return Path(str(parsed.database)).absolute()


def _connect(url: str) -> Engine:
    file = database_file(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 60.0})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _configure_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # SQLAlchemy opens transactions itself, see BEGIN IMMEDIATE
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _among(column: Column[str], values: Collection[str]) -> ColumnElement[bool]:
    """Whether a column is one of the values; one parameter, because SQLite takes no more than some thousand."""
    return column.in_(select(func.json_each(json.dumps(list(values))).table_valued("value").c.value))


_MECHANISM = ("dataset_id", "sampling_rate", "noise_multiplier", "relation")


def _accounts(connection: Connection, dataset_ids: Collection[str]) -> dict[str, Account]:
    spent = select(balances).where(_among(balances.c.dataset_id, dataset_ids), balances.c.charges > 0)
    histories: dict[str, dict[Event, int]] = {}
    rounds: dict[str, int] = {}
    for dataset_id, q, sigma, relation, steps, count in connection.execute(spent):
        histories.setdefault(dataset_id, {})[PoissonSampledGaussian(q, sigma, relation)] = int(steps)
        rounds[dataset_id] = rounds.get(dataset_id, 0) + int(count)
    return {dataset_id: Account(history, rounds[dataset_id]) for dataset_id, history in histories.items()}


def _add_to_balances(connection: Connection, changes: list[dict[str, Any]]) -> None:
    """Add steps and numbers of charges, or take them away."""
    if not changes:
        return
    added = sqlite.insert(balances)
    total = {name: balances.c[name] + added.excluded[name] for name in ("steps", "charges")}
    columns = (*_MECHANISM, *total)
    upsert = added.on_conflict_do_update(index_elements=_MECHANISM, set_=total)
    connection.execute(upsert, [{name: change[name] for name in columns} for change in changes])


def _mend_balances(connection: Connection) -> None:
    """Add the charges up anew where balances say something else: the charges are what counts."""
    summed, known = _summed_charges(), select(balances).where(balances.c.charges > 0)
    if any(connection.execute(one.except_(other)).first() for one, other in ((summed, known), (known, summed))):
        connection.execute(delete(balances))
        connection.execute(insert(balances).from_select(balances.c.keys(), summed))


def _summed_charges() -> Select[Any]:
    mechanism = [charges.c[name] for name in _MECHANISM]
    return (
        select(*mechanism, func.sum(charges.c.steps), func.count())
        .where(charges.c.state != ChargeState.VOID)
        .group_by(*mechanism)
    )


def _allowances(connection: Connection, dataset_ids: Collection[str]) -> dict[str, Allowance]:
    rows = connection.execute(select(budgets).where(_among(budgets.c.dataset_id, dataset_ids)))
    return {
        row.dataset_id: Allowance(
            PrivacyBudget(math.inf if row.epsilon is None else row.epsilon, row.delta), row.filter
        )
        for row in rows
    }


def _budget_row(dataset_id: str, allowance: Allowance) -> dict[str, object]:
    return {
        "dataset_id": dataset_id,
        "epsilon": allowance.budget.epsilon if allowance.budget.enforced else None,
        "delta": allowance.budget.delta,
        "filter": allowance.filter,
        "created_at": _now(),
    }


def _charge_row(
    dataset_id: str, run_id: str, round: int, event: PoissonSampledGaussian, steps: int
) -> dict[str, object]:
    return {
        "dataset_id": dataset_id,
        "run_id": run_id,
        "round": round,
        "attempt": 1,
        "sampling_rate": event.sampling_rate,
        "noise_multiplier": event.noise_multiplier,
        "relation": event.relation,
        "view": SERVER_VIEW,
        "steps": steps,
        "state": ChargeState.RESERVED,
        "charged_at": _now(),
    }


def _contradiction(url: str, dataset_id: str, known: Allowance, asked: Allowance) -> str:
    def words(a: Allowance) -> str:
        return f"epsilon {a.budget.epsilon:g}, delta {a.budget.delta:g}, filter {a.filter}"

    return (
        f"ledger {url} gives dataset {dataset_id} a budget of {words(known)}, and this run asks for {words(asked)}: "
        "a budget belongs to the dataset, over all runs. Use the ledger's budget, or another ledger."
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
