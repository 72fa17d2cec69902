"""`fedprivacy ledger`: deliberate acts on a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedprivacy.identity import key_hash
from fedprivacy.plain_errors import plain_errors

ledger_app = typer.Typer(no_args_is_help=True, help="Deliberate acts on a ledger.")


@ledger_app.callback()
def _group() -> None:
    """Keep `rebind` a command of its own while it is the only one."""


@ledger_app.command()
def rebind(
    client: Annotated[str, typer.Argument(help="The client's registered name.")],
    public_key: Annotated[Path, typer.Argument(help="Its new public key, in OpenSSH's format.")],
    ledger: Annotated[str, typer.Option(help="URL of the ledger, sqlite:///path.")],
) -> None:
    """Let a client that renewed its key go on with the account that it has."""
    from fedprivacy.ledger import Ledger, LedgerError

    with plain_errors(LedgerError, OSError, ValueError, code=2):
        Ledger(ledger).rebind_key(client, key_hash(_pem(public_key)))
    Console(stderr=True).print(f"The account of {client} goes on under the new key.", highlight=False)


def _pem(public_key: Path) -> bytes:
    """A key in the form in which Flower's SuperLink keeps it.

    Raises:
        ValueError: the file holds no OpenSSH public key.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    key = load_ssh_public_key(public_key.read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
