"""The journal: entries that are appended, each chained to the one before, and never changed.

Integrity: entry n's hash covers its text and the hash of entry n - 1 (Haber, Stornetta 1991; SHA-256). Whoever changes,
drops, inserts or reorders an entry has to change every hash after it, and so contradicts every head that was
signed since (`fedprivacy.ledger.heads`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from fedprivacy.ledger.schema import journal

FIRST_HASH = "0" * 64
"""What the first entry is chained to."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry.

    Attributes:
        number: how many entries there are.
        hash: of the newest, in hexadecimal.
    """

    number: int = 0
    hash: str = FIRST_HASH


def canonical(entry: Mapping[str, Any]) -> str:
    """The one text of an entry: JSON in ASCII, with sorted keys and without spaces.

    >>> canonical({"kind": "run", "at": "2026-11-21T08:00:00+00:00"})
    '{"at":"2026-11-21T08:00:00+00:00","kind":"run"}'
    """
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)


def chained(previous_hash: str, text: str) -> str:
    """The hash of an entry."""
    return hashlib.sha256(f"{previous_hash}{text}".encode()).hexdigest()


def head(connection: Connection) -> Head:
    """Where the journal ends."""
    newest = select(journal.c.number, journal.c.hash).order_by(journal.c.number.desc()).limit(1)
    row = connection.execute(newest).first()
    return Head(row.number, row.hash) if row else Head()


def append(connection: Connection, kind: str, **facts: Any) -> int:
    """Add an entry; the transaction must have the journal to itself.

    Args:
        connection: in a transaction.
        kind: what the entry records, see `fedprivacy.ledger.replay`.
        facts: JSON values.

    Returns:
        The entry's number.
    """
    last = head(connection)
    text = canonical({"kind": kind, "at": now().isoformat(), **facts})
    connection.execute(insert(journal).values(number=last.number + 1, entry=text, hash=chained(last.hash, text)))
    return last.number + 1


def now() -> datetime.datetime:
    """The time, for people: no balance and no order depends on it."""
    return datetime.datetime.now(datetime.UTC)
