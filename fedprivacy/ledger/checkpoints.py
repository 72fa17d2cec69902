"""Signed checkpoints: what keeps somebody who can write the database from writing it all anew.

A checkpoint says "entry n had this hash at that time", signed with the server's Ed25519 key (RFC 8032). Whoever does
not hold the key cannot change an entry that a checkpoint covers. Whoever does hold it still contradicts a checkpoint
that was kept elsewhere: give copies to those who must be able to rely on the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, insert, select

from fedprivacy.ledger import journal
from fedprivacy.ledger.schema import checkpoints
from fedprivacy.ledger.store import Ledger
from fedprivacy.signing import server_public_key, sign, signed_by_server

_PURPOSE = "ledger checkpoint"


class Checkpoint(NamedTuple):
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
        return signed_by_server(self.public_key, _PURPOSE, message, self.signature)


def sign_checkpoint(ledger: Ledger, key: Ed25519PrivateKey) -> Checkpoint | None:
    """Sign where the journal ends, and keep the checkpoint in the ledger; None if there is no entry yet."""

    def work(connection: Connection, _: bool) -> Checkpoint | None:
        head = journal.head(connection)
        if head.number == 0:
            return None
        public_key, at = server_public_key(key), journal.now().isoformat()
        mine = select(checkpoints).where(checkpoints.c.number == head.number, checkpoints.c.public_key == public_key)
        if (known := connection.execute(mine).first()) is not None:
            return Checkpoint(*known)
        made = Checkpoint(
            head.number, head.hash, at, public_key, sign(key, _PURPOSE, _message(head.number, head.hash, at))
        )
        connection.execute(insert(checkpoints).values(made._asdict()))
        return made

    return ledger.database.write(work)


def read_checkpoints(connection: Connection) -> list[Checkpoint]:
    """Every checkpoint, in the order of the entries that they cover."""
    newest_last = select(checkpoints).order_by(checkpoints.c.number, checkpoints.c.public_key)
    return [Checkpoint(*row) for row in connection.execute(newest_last)]


def parsed_checkpoint(fields: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint from JSON, strictly: each has one text alone.

    Raises:
        ValueError: a field has not the form that `sign_checkpoint` gives it.
        TypeError: it lacks a field, or has one more.
    """
    checkpoint = Checkpoint(**fields)
    number, *texts = checkpoint
    if type(number) is not int or not all(isinstance(text, str) for text in texts):
        raise ValueError("a field of the checkpoint has another type")
    for text in (checkpoint.hash, checkpoint.public_key, checkpoint.signature):
        if bytes.fromhex(text).hex() != text:
            raise ValueError("a field of the checkpoint is not in lower-case hexadecimal")
    return checkpoint


def _message(number: int, hash: str, at: str) -> bytes:
    return f"{number} {hash} {at}".encode()
