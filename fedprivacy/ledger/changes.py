"""Changes by the journal: accounts that were written about since an earlier reading, and every budget of a dataset.

Every change of an account or a budget appends an entry that names the datasets, in the same transaction. So a reader
that knows an account as of one entry, and reads the later entries, knows which accounts to read again; all others are
unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select

from fedprivacy.ledger.charges import Account, accounts_of, allowances_of
from fedprivacy.ledger.database import Database
from fedprivacy.ledger.journal import Head, head
from fedprivacy.ledger.schema import journal
from fedprivacy.values.budget import Allowance


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
    now = head(connection)
    changed = unread if now == since else _named_since(connection, since)
    wanted = known if changed is None else (changed & known) | unread
    if not wanted:
        return ChangedAccounts(now, (), {}, {})
    return ChangedAccounts(now, wanted, accounts_of(connection, wanted), allowances_of(connection, wanted))


def _named_since(connection: Connection, since: Head) -> set[str] | None:
    """Return the datasets whose accounts or budgets later entries change; None: the journal does not hold `since`."""
    if since == Head():
        return None
    held = connection.scalar(_HASH_OF, {"number": since.number})
    if held != since.hash:  # an older copy was restored
        return None
    named: set[str] = set()
    for entry in connection.scalars(_ENTRIES_AFTER, {"number": since.number}):
        facts = json.loads(entry)
        named.update(_NAMED[facts["kind"]](facts))
    return named


_HASH_OF = select(journal.c.hash).where(journal.c.number == bindparam("number"))
_ENTRIES_AFTER = select(journal.c.entry).where(journal.c.number > bindparam("number"))

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
    given = select(journal.c.entry).where(journal.c.entry.like(_BUDGETS)).order_by(journal.c.number)
    if last is not None:
        given = given.where(journal.c.number <= last)
    with database.reading() as connection:
        for (text,) in connection.execution_options(yield_per=1000).execute(given):
            entry = json.loads(text)
            for dataset_id in found.keys() & entry["budgets"].keys():
                epsilon, delta, _, expires = entry["budgets"][dataset_id]
                said = entry.get("reason"), entry.get("by", "")
                found[dataset_id].append(BudgetChange(entry["at"], epsilon, delta, expires, *said))
    return found
