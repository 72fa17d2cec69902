"""An exported ledger, brought back into an empty database: to move to PostgreSQL, or to make damaged tables anew."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, insert

from fedprivacy.ledger import journal
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.export import Entry, read_export
from fedprivacy.ledger.heads import SignedHead
from fedprivacy.ledger.replay import Replay, WrittenAllowance
from fedprivacy.ledger.schema import balances, budgets, charges, heads, keys, runs
from fedprivacy.ledger.schema import journal as journal_table
from fedprivacy.ledger.store import Ledger
from fedprivacy.ledger.verify import Verified, verify_export

T = TypeVar("T")

_AT_ONCE = 10_000
"""Rows that are held in memory."""


def import_ledger(file: Path, ledger: Ledger) -> Verified:
    """Write an export into an empty ledger, entry by entry as it was, once it is verified.

    Args:
        file: written by `fedprivacy.ledger.export`.
        ledger: without entries.

    Raises:
        BrokenJournalError: the export is damaged. Nothing is written.
        LedgerError: the ledger has entries already.
        OSError: the file cannot be read.
    """
    verified = verify_export(file)

    def work(connection: Connection, again: bool) -> None:
        held = journal.head(connection)
        if again and held == verified.head:
            return
        if held.number:
            raise LedgerError(f"ledger {ledger.name} has entries already; import into a new one.")
        with file.open("rb") as lines:
            _write_parts(connection, read_export(lines))
        _write_tables(connection, verified.replay)

    ledger.database.write(work)
    return verified


def _write_parts(connection: Connection, parts: Iterable[Entry | SignedHead]) -> None:
    for some in _batches(parts):
        entries = [{"number": e.number, "entry": e.text, "hash": e.hash} for e in some if isinstance(e, Entry)]
        _insert(connection, journal_table, entries)
        _insert(connection, heads, (part._asdict() for part in some if isinstance(part, SignedHead)))


def _write_tables(connection: Connection, replay: Replay) -> None:
    """What the journal adds up to."""
    _insert(connection, runs, ({"run_id": r, **run._asdict()} for r, run in replay.runs.items()))
    _insert(connection, keys, ({"client_id": client, "key_hash": key} for client, key in replay.keys.items()))
    _insert(connection, budgets, ({"dataset_id": d, **_row(allowance)} for d, allowance in replay.budgets.items()))
    _insert(connection, charges, ({**key._asdict(), **charge._asdict()} for key, charge in replay.charges.items()))
    sums = replay.balances().items()
    _insert(connection, balances, ({**key._asdict(), "steps": steps, "charges": n} for key, (steps, n) in sums))


def _row(allowance: WrittenAllowance) -> dict[str, Any]:
    expires = allowance.expires and datetime.datetime.fromisoformat(allowance.expires)
    return allowance._asdict() | {"expires": expires}


def _insert(connection: Connection, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    for some in _batches(rows):
        connection.execute(insert(table), some)


def _batches(rows: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(rows)
    while some := list(islice(remaining, _AT_ONCE)):
        yield some
