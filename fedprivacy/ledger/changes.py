"""Changed accounts: the datasets that the ledger has written about since an earlier reading, by the journal.

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
