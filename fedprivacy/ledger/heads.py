"""Signed heads of the journal: what keeps somebody who can write the database from writing it all anew.

A signed head says "entry n had this hash at that time", signed with the server's Ed25519 key (RFC 8032). Whoever does
not hold the key cannot change an entry that it covers. Whoever does hold it still contradicts one
that was kept elsewhere: give copies to those who must be able to rely on the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, insert, select

from fedprivacy._support.signing import LEDGER_HEAD, server_public_key, sign, signed_by_server
from fedprivacy.ledger import journal
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.schema import heads
from fedprivacy.ledger.schema import journal as journal_table
from fedprivacy.ledger.store import Ledger


class SignedHead(NamedTuple):
    """A signed statement about the journal.

    Attributes:
        number: the last entry that it covers.
        hash: of that entry, in hexadecimal.
        at: when it was signed, ISO 8601.
        public_key: who signed, in hexadecimal.
        signature: of the three before, in hexadecimal.
    """

    number: int
    hash: str
    at: str
    public_key: str
    signature: str

    @property
    def genuine(self) -> bool:
        """Whether the holder of the key signed this."""
        message = _message(self.number, self.hash, self.at)
        return signed_by_server(self.public_key, LEDGER_HEAD, message, self.signature)


def sign_head(ledger: Ledger, key: Ed25519PrivateKey, after: SignedHead | None = None) -> SignedHead | None:
    """Sign where the journal ends, and keep that in the ledger; None if there is no entry yet.

    Args:
        ledger: the ledger.
        key: who signs.
        after: what the signer knows of the ledger: whoever signs on, signs for what came before.

    Raises:
        LedgerError: the journal no longer holds what `after` says, or what this key signed at last.
    """

    def work(connection: Connection, _: bool) -> SignedHead | None:
        public_key = server_public_key(key)
        own = _newest(connection, public_key)
        for known in (after, own):
            check_ancestor(connection, ledger.name, known)
        head = journal.head(connection)
        if head.number == 0 or (own is not None and own.number == head.number):
            return own
        at = journal.now().isoformat()
        signature = sign(key, LEDGER_HEAD, _message(head.number, head.hash, at))
        made = SignedHead(head.number, head.hash, at, public_key, signature)
        connection.execute(insert(heads).values(made._asdict()))
        return made

    return ledger.database.write(work)


def check_ancestor(connection: Connection, name: str, known: SignedHead | None) -> None:
    """Refuse a ledger whose journal does not hold what a signed head says.

    Raises:
        LedgerError: it was rewritten since, or an older copy was put back.
    """
    if known is None:
        return
    held = connection.scalar(select(journal_table.c.hash).where(journal_table.c.number == known.number))
    if held != known.hash:
        raise LedgerError(
            f"ledger {name} does not hold entry {known.number} as it was signed on {known.at}: it was rewritten since, "
            "or an older copy was put back. Nothing is granted on it. 'fedprivacy ledger verify --witness' says more; "
            "put back the ledger that holds it."
        )


def _newest(connection: Connection, public_key: str) -> SignedHead | None:
    mine = select(heads).where(heads.c.public_key == public_key)
    row = connection.execute(mine.order_by(heads.c.number.desc()).limit(1)).first()
    return SignedHead(*row) if row else None


def read_heads(connection: Connection) -> list[SignedHead]:
    """Every signed head, in the order of the entries that they cover."""
    newest_last = select(heads).order_by(heads.c.number, heads.c.public_key)
    return [SignedHead(*row) for row in connection.execute(newest_last)]


def parsed_head(fields: Mapping[str, Any]) -> SignedHead:
    """A signed head from JSON, strictly: each has one text alone.

    Raises:
        ValueError: a field has not the form that `sign_head` gives it.
        TypeError: it lacks a field, or has one more.
    """
    head = SignedHead(**fields)
    number, *texts = head
    if type(number) is not int or not all(isinstance(text, str) for text in texts):
        raise ValueError("a field of the signed head has another type")
    for text in (head.hash, head.public_key, head.signature):
        if bytes.fromhex(text).hex() != text:
            raise ValueError("a field of the signed head is not in lower-case hexadecimal")
    return head


def _message(number: int, hash: str, at: str) -> bytes:
    return f"{number} {hash} {at}".encode()
