"""The database of a run store: `run.db` in a run's folder, the database of a ledger, or memory."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, StaticPool, create_engine, delete, inspect, select
from sqlalchemy.exc import DBAPIError

from fedprivacy.ledger.database import Database, database_file, file_url, put_rows, reading_engine
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.schema import charges
from fedprivacy.runs.records.store.schema import metadata, recorded_results, recorded_runs

RECORD = "run.db"
"""Name of the file in a run's folder that holds its rounds."""

EARLIER = "start.json"
"""Name of a file in the folder of a run of a version that had no such file."""

IN_MEMORY = "sqlite://"
"""URL of a database of its own for each object, which ends with that."""


class RecordDatabase(Database):
    """The database of a run store; a writer creates what is missing of its tables, and of the ledger's beside them.

    Args:
        url: of the file in a run's folder or of a ledger, or `IN_MEMORY`.
        patience: seconds for which a database that is locked, full or gone is tried again.
        writes: whether it will be written.
        durable: whether a transaction that returned survives a loss of power.

    Raises:
        LedgerError: the database cannot be used, or another version of fedprivacy wrote the tables.
    """

    def __init__(self, url: str, patience: float = 5.0, *, writes: bool = True, durable: bool = False) -> None:
        engine, file = None, None if url == IN_MEMORY else database_file(url)
        self._alone_there = url == IN_MEMORY or (file is not None and file.name == RECORD)
        if url == IN_MEMORY:
            engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        elif file and not writes:
            engine = reading_engine(file, patience)
        self._whole = durable
        super().__init__(url, patience, create=writes, durable=durable, engine=engine)

    def put_line(self, run_id: str, round: int, line: str) -> None:
        """Write all of a finished round; see `read_lines`.

        Raises:
            LedgerError: it could not be written.
        """
        row = {"run_id": run_id, "round": round, "told": line}
        self.write(lambda connection, _: put_rows(connection, recorded_results, [row]))

    def forget_after(self, round: int) -> None:
        """Delete what `put_line` wrote of later rounds, which are run again.

        Raises:
            LedgerError: it could not be deleted.
        """
        later = delete(recorded_results).where(recorded_results.c.round > round)
        self.write(lambda connection, _: connection.execute(later))

    def close(self) -> None:
        """Close every connection. A file that was written durably is one file afterwards, unless somebody reads it."""
        super().close()
        if self._whole:
            # Somebody reads it, or the disk is full: then all that fits is moved into the file, and the log stays.
            with suppress(sqlite3.OperationalError, DBAPIError), closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA busy_timeout = 0")
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
                connection.cursor().execute("PRAGMA journal_mode = DELETE")
            super().close()

    def _unusable(self, error: DBAPIError) -> LedgerError:
        full = getattr(error.orig, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        reason = os.strerror(errno.ENOSPC) if full else str(error.orig)
        return LedgerError(reason if self._whole else f"run store {self.name} cannot be used: {reason}.")

    def _check_tables(self, *, create: bool) -> None:
        if create and not self._alone_there:
            super()._check_tables(create=True)
        self.has_tables = self.read(partial(has_runs, name=self.name))
        if create and not self.has_tables:
            self.write(lambda connection, _: metadata.create_all(connection))


def read_lines(folder: Path) -> list[str]:
    """Read every round of the run in a folder as a line of JSON, the state before the first one first; empty: no run.

    Raises:
        LedgerError: they cannot be read, or another version of fedprivacy wrote them.
    """
    if not (folder / RECORD).is_file():
        if (folder / EARLIER).exists():
            raise LedgerError(
                f"it is of an earlier version of fedprivacy, without {RECORD}; read it with that version, or make the "
                "run again."
            )
        return []
    wanted = select(recorded_results.c.told).order_by(recorded_results.c.round)
    with closing(RecordDatabase(url_in(folder), writes=False)) as database:
        # Without tables: a run begins just now, or was killed while it began.
        return database.read(lambda connection: list(connection.scalars(wanted))) if database.has_tables else []


def url_in(folder: Path) -> str:
    """Return the URL of the store in a run's folder."""
    return file_url(folder.absolute() / RECORD)


def has_runs(connection: Connection, name: str) -> bool:
    """Return whether a database, which is called so, has the tables of a run store.

    Raises:
        LedgerError: another version of fedprivacy wrote them.
    """
    inspector = inspect(connection)
    if not inspector.has_table(recorded_runs.name):
        return False
    beside_charges = inspector.has_table(charges.name)  # of runs elsewhere, whose folders hold all of them
    remedy = "name the runs' folders in place of this ledger" if beside_charges else "make the runs again"
    for table in metadata.sorted_tables:
        found = inspector.get_columns(table.name) if inspector.has_table(table.name) else []
        if {column["name"] for column in found} != set(table.columns.keys()):
            raise LedgerError(
                f"run store {name} was written by another version of fedprivacy, whose runs this one cannot read; read "
                f"them with that version, or {remedy}."
            )
    return True
