"""What the ledger has written about since somebody last looked: the journal says it, whoever wrote.

Whatever changes an account or a budget appends an entry that names the datasets, in the transaction that makes the
change. So who knows an account as it was at one entry, and reads the entries after it, knows which accounts to read
again; all others are what they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from fedprivacy.ledger.charges import Account, accounts_of, allowances_of
from fedprivacy.ledger.journal import Head, head
from fedprivacy.ledger.schema import journal
from fedprivacy.values.budget import Allowance


class Reading(NamedTuple):
    """What the ledger held of some datasets.

    Attributes:
        head: where the journal ended.
        dataset_ids: whose accounts were read.
        accounts: what they were charged; those that were charged nothing are missing.
        allowances: the budgets in force.
    """

    head: Head
    dataset_ids: Collection[str]
    accounts: Mapping[str, Account]
    allowances: Mapping[str, Allowance]


def read_changed(connection: Connection, known: Set[str], since: Head, unread: Set[str]) -> Reading:
    """Read the accounts of those datasets that were written about since another reading.

    Args:
        connection: in a transaction that sees one state of the ledger.
        known: datasets that are of interest.
        since: where the journal ended at the other reading.
        unread: of these datasets, those that are read in any case.
    """
    now = head(connection)
    changed = unread if now == since else _named_since(connection, since)
    wanted = known if changed is None else (changed & known) | unread
    if not wanted:
        return Reading(now, (), {}, {})
    return Reading(now, wanted, accounts_of(connection, wanted), allowances_of(connection, wanted))


def _named_since(connection: Connection, since: Head) -> set[str] | None:
    """Datasets whose accounts or budgets the entries after one speak of; None: the journal does not hold that one."""
    if since == Head():
        return None
    held = connection.scalar(select(journal.c.hash).where(journal.c.number == since.number))
    if held != since.hash:  # an older copy was put back
        return None
    named: set[str] = set()
    for entry in connection.scalars(select(journal.c.entry).where(journal.c.number > since.number)):
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
"""By kind of entry, see `fedprivacy.ledger.replay`: whose account or budget it changes."""
