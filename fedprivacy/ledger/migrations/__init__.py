"""The ledger's tables over time: Alembic migrations, applied when a ledger is opened."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from fedprivacy.ledger.errors import LedgerError

NEWEST = "0005"
"""The revision that this program works with."""

_BEFORE_MIGRATIONS = "0001"

_ONE_AT_A_TIME = threading.Lock()
"""Alembic keeps what it migrates in a global variable, so that two threads would migrate each other's ledgers."""


def is_newest(connection: Connection, name: str) -> bool:
    """Whether the tables are those that this program works with.

    Raises:
        LedgerError: a newer version of this program made them.
    """
    revision = _revision(connection)
    if revision is not None and revision > NEWEST:
        raise LedgerError(
            f"ledger {name} has revision {revision}, and this version of fedprivacy knows {NEWEST} at most; update it."
        )
    return revision == NEWEST


def bring_up_to_date(connection: Connection) -> None:
    """Apply what is missing, in the caller's transaction, which has the ledger to itself."""
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
