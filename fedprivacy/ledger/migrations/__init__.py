"""The ledger's tables over time: Alembic migrations, applied when a ledger is opened."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from fedprivacy.ledger.errors import LedgerError

NEWEST = "0006"
"""Revision that this program uses."""

_BEFORE_MIGRATIONS = "0001"

_ONE_AT_A_TIME = threading.Lock()
"""Lock: Alembic keeps the connection in a global variable, so that two threads would migrate each other's ledgers."""


def is_newest(connection: Connection, name: str) -> bool:
    """Return whether the tables have the revision that this program uses.

    Raises:
        LedgerError: they are from a newer version of this program.
    """
    revision = _revision(connection)
    if revision is not None and revision > NEWEST:
        raise LedgerError(
            f"ledger {name} has revision {revision}, and this version of fedprivacy knows {NEWEST} at most; update it."
        )
    return revision == NEWEST


def bring_up_to_date(connection: Connection) -> None:
    """Apply missing migrations, in the caller's transaction, which has exclusive access to the ledger."""
    revision = _revision(connection)
    if revision == NEWEST:
        return  # another process was first
    from alembic import command  # a fifth of a second, for a ledger that is new or old
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    with _ONE_AT_A_TIME:
        if revision is None and inspect(connection).has_table("charges"):
            command.stamp(config, _BEFORE_MIGRATIONS)
        command.upgrade(config, NEWEST)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return str(revision) if revision else None
