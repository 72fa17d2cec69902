"""The journal: append-only entries, each chained to the one before; and its signed heads.

Integrity: entry n's hash covers its text and the hash of entry n - 1 (Haber, Stornetta 1991; SHA-256). Changing,
dropping, inserting or reordering an entry changes every later hash, and so contradicts every head that was signed
since.

A signed head states "entry n had this hash at that time", signed with the server's Ed25519 key (RFC 8032). A person who
can write to the database but does not hold the key cannot change an entry that it covers. A person who holds the key
would still contradict a head that is kept elsewhere: give copies to those who must rely on the ledger.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, insert, select

from fedprivacy._support.signing import LEDGER_HEAD, server_public_key, sign, signed_by_server
from fedprivacy.ledger.database import Database
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.schema import heads, journal

FIRST_HASH = "0" * 64
"""Hash to which the first entry is chained."""


class Head(NamedTuple):
    """The newest entry: the number of entries, and its hash in hexadecimal."""

    number: int = 0
    hash: str = FIRST_HASH


class Entry(NamedTuple):
    """An entry as stored: its number from 1, its canonical JSON, its hash in hexadecimal."""

    number: int
    text: str
    hash: str


class SignedHead(NamedTuple):
    """A signed statement about the journal.

    Attributes:
        number: number of the last entry that it covers.
        hash: hash of that entry, in hexadecimal.
        at: time of signing, ISO 8601.
        public_key: public key of the signer, in hexadecimal.
        signature: signature of the first three fields, in hexadecimal.
    """

    number: int
    hash: str
    at: str
    public_key: str
    signature: str

    @property
    def genuine(self) -> bool:
        """True if the holder of the key signed this."""
        message = _message(self.number, self.hash, self.at)
        return signed_by_server(self.public_key, LEDGER_HEAD, message, self.signature)


def _message(number: int, hash: str, at: str) -> bytes:
    return f"{number} {hash} {at}".encode()


def canonical(entry: Mapping[str, Any]) -> str:
    """Write an entry as its only text: JSON in ASCII, with sorted keys and without spaces.

    >>> canonical({"kind": "run", "at": "2026-11-21T08:00:00+00:00"})
    '{"at":"2026-11-21T08:00:00+00:00","kind":"run"}'
    """
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)


def entry_hash(previous_hash: str, text: str) -> str:
    """Compute the hash of an entry."""
    return hashlib.sha256(f"{previous_hash}{text}".encode()).hexdigest()


def now() -> datetime.datetime:
    """Return the time, for people: no balance and no order depends on it."""
    return datetime.datetime.now(datetime.UTC)


def head(connection: Connection) -> Head:
    """Return the newest entry of the journal."""
    row = connection.execute(_NEWEST).first()
    return Head(*row) if row else Head()


def append(connection: Connection, kind: str, **facts: Any) -> int:
    """Append an entry; the transaction must have exclusive access to the journal.

    Args:
        connection: connection in a transaction.
        kind: kind of the entry, see `fedprivacy.ledger.replay`.
        facts: fields of the entry, JSON values.

    Returns:
        The entry's number.
    """
    last = head(connection)
    text = canonical({"kind": kind, "at": now().isoformat(), **facts})
    connection.execute(_INSERT, {"number": last.number + 1, "entry": text, "hash": entry_hash(last.hash, text)})
    return last.number + 1


_NEWEST = select(journal.c.number, journal.c.hash).order_by(journal.c.number.desc()).limit(1)
_INSERT = insert(journal)


def read_entries(connection: Connection) -> Iterator[Entry]:
    """Read every entry, in order."""
    rows = select(journal.c.number, journal.c.entry, journal.c.hash).order_by(journal.c.number)
    for row in connection.execution_options(yield_per=1000).execute(rows):
        yield Entry(*row)


def key_owners(connection: Connection) -> dict[str, str]:
    """Return the clients by the hashes of all keys that they ever had, replaced ones included."""
    ending = canonical({"kind": "key"})[1:]  # keys are sorted, and no other field of such an entry comes later
    texts = connection.scalars(
        select(journal.c.entry).where(journal.c.entry.endswith(ending)).order_by(journal.c.number)
    )
    return {entry["key_hash"]: entry["client_id"] for entry in map(json.loads, texts)}


def read_heads(connection: Connection) -> list[SignedHead]:
    """Read every signed head, in the order of the entries that they cover."""
    newest_last = select(heads).order_by(heads.c.number, heads.c.public_key)
    return [SignedHead(*row) for row in connection.execute(newest_last)]


def sign_head(database: Database, key: Ed25519PrivateKey, after: SignedHead | None = None) -> SignedHead | None:
    """Sign the newest entry, and store the signed head in the ledger; None if there is no entry yet.

    Args:
        database: database of the ledger.
        key: key of the signer.
        after: a signed head that the signer knows; a new signature vouches for all earlier entries.

    Raises:
        LedgerError: the journal contradicts `after`, or the last head signed with this key.
    """
    public_key = server_public_key(key)
    mine = select(heads).where(heads.c.public_key == public_key).order_by(heads.c.number.desc()).limit(1)

    def work(connection: Connection, _: bool) -> SignedHead | None:
        row = connection.execute(mine).first()
        own = SignedHead(*row) if row else None
        for known in (after, own):
            check_ancestor(connection, database.name, known)
        newest = head(connection)
        if newest.number == 0 or (own is not None and own.number == newest.number):
            return own
        at = now().isoformat()
        made = SignedHead(*newest, at, public_key, sign(key, LEDGER_HEAD, _message(*newest, at)))
        connection.execute(insert(heads).values(made._asdict()))
        return made

    return database.write(work)


def holds(connection: Connection, known: SignedHead) -> bool:
    """Return whether the journal holds an entry as it was signed."""
    held = connection.scalar(select(journal.c.hash).where(journal.c.number == known.number))
    return bool(held == known.hash)


def check_ancestor(connection: Connection, name: str, known: SignedHead | None) -> None:
    """Refuse a ledger whose journal contradicts a signed head.

    Raises:
        LedgerError: the journal was rewritten since, or an older copy was restored.
    """
    if known is not None and not holds(connection, known):
        raise LedgerError(
            f"ledger {name} does not hold entry {known.number} as it was signed on {known.at}: it was rewritten since, "
            "or an older copy was put back. Nothing is granted on it. 'fedprivacy ledger verify --witness' says more; "
            "put back the ledger that holds it."
        )


def parsed_head(fields: Mapping[str, Any]) -> SignedHead:
    """Parse a signed head from JSON, strictly: each head has only one text.

    Raises:
        ValueError: a field does not have the form that `sign_head` gives it.
        TypeError: a field is missing or superfluous.
    """
    head = SignedHead(**fields)
    number, *texts = head
    if type(number) is not int or not all(isinstance(text, str) for text in texts):
        raise ValueError("a field of the signed head has another type")
    for text in (head.hash, head.public_key, head.signature):
        if bytes.fromhex(text).hex() != text:
            raise ValueError("a field of the signed head is not in lower-case hexadecimal")
    return head
