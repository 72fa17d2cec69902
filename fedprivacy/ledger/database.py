"""The database behind a ledger: SQLite in a file, or PostgreSQL; transactions that outlast a short outage.

Durability: a transaction that returned is on the disk (SQLite: write-ahead log with `synchronous = FULL`; PostgreSQL:
`synchronous_commit = on`, whatever the server's default is). Isolation: a transaction that writes has the ledger to
itself (SQLite: BEGIN IMMEDIATE; PostgreSQL: an advisory lock), so what it read stays true until it ends. Differences
between the two databases are handled here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Table,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.types import ARRAY, Enum, String, TypeEngine

from fedprivacy._support.settings import without_folder
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.schema import is_made, make_tables

log = logging.getLogger("fedprivacy.ledger")

T = TypeVar("T")
_Insert = TypeVar("_Insert", sqlite.Insert, postgresql.Insert)

PATIENCE = 60.0
"""Seconds for which a locked, full or unreachable ledger is retried."""

_LONGEST_PAUSE = 2.0

_SECRETS = ("password", "sslpassword")

_POSTGRESQL = "postgresql+psycopg"

_GIVEN = "given"

_SCHEME = re.compile(r"[a-z][a-z0-9+]+:", re.IGNORECASE)
"""Pattern of the beginning of a URL; all else is a path."""


class Database:
    """The database of one ledger; its tables are created when it is opened for the first time.

    Args:
        url: `sqlite:///path/to/ledger.db` or `postgresql+psycopg://user@host/name`.
        patience: seconds to wait for a database that is locked, full or unreachable.
        create: whether tables may be created.
        durable: whether a transaction that returned survives a loss of power; a copy of another ledger need not.
        engine: connects to the database; None: as its URL says.

    Raises:
        LedgerError: the URL or place is invalid, the tables are of another revision, or there are none.
    """

    def __init__(
        self,
        url: str,
        patience: float = PATIENCE,
        *,
        create: bool = True,
        durable: bool = True,
        engine: Engine | None = None,
    ) -> None:
        self.name = without_password(url)
        self._patience = patience
        self._engine = _engine(url, patience, durable) if engine is None else engine
        self._check_tables(create=create)

    def _check_tables(self, *, create: bool) -> None:
        """Refuse tables of another revision, or create what is missing."""
        # Two programs that create one file's tables at once wait for each other; a missing folder is a mistake.
        if self._repeat(self._snapshot, partial(is_made, name=self.name), _is_locked):
            return
        if not create:
            raise LedgerError(f"ledger {self.name} is empty, and nothing may change it here; name the one of a run.")
        self._repeat(self._alone, partial(make_tables, name=self.name), _is_locked)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the ledger, and changes nothing.

        Raises:
            LedgerError: the database cannot be used.
        """
        try:
            with self._snapshot() as connection:
                yield connection
        except DBAPIError as error:
            raise self._unusable(error) from error

    def read(self, work: Callable[[Connection], T]) -> T:
        """Read one state of the ledger; after an outage retry, for `patience` seconds.

        Raises:
            LedgerError: the database cannot be used, or not within `patience`.
        """
        return self._repeat(self._snapshot, work, _passes)

    def write(self, work: Callable[[Connection, bool], T]) -> T:
        """Write in a transaction with exclusive access to the ledger; after an outage retry, for `patience` seconds.

        Args:
            work: function of the connection, and of whether an earlier try reached its commit. That try may have
                succeeded although it raised an error: a connection can break between the commit and its confirmation.
                Another try must check this.

        Raises:
            LedgerError: the database cannot be used, or not for so long.
        """
        committing = False

        def once(connection: Connection) -> T:
            nonlocal committing
            done = work(connection, committing)
            committing = True
            return done

        return self._repeat(self._alone, once, _passes)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Open a transaction that sees one state throughout: SQLite's always do."""
        with self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        """Open a transaction during which nobody else writes to the ledger."""
        with self._engine.connect() as connection, connection.execution_options(**{_ALONE: True}).begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield connection

    def _repeat(
        self,
        transaction: Callable[[], AbstractContextManager[Connection]],
        work: Callable[[Connection], T],
        passes: Callable[[DBAPIError], bool],
    ) -> T:
        """Retry until it works, the error is permanent, or patience ends."""
        deadline, pause = time.monotonic() + self._patience, 0.05
        while True:
            try:
                with transaction() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not passes(error) or time.monotonic() + pause > deadline:
                    raise self._unusable(error) from error
                log.warning("Database %s cannot be used (%s); trying again.", self.name, _reason(error))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _unusable(self, error: DBAPIError) -> LedgerError:
        return LedgerError(
            f"ledger {self.name} cannot be used: {_reason(error)}. What was charged before stays charged. Mend the "
            "database, then go on."
        )

    def close(self) -> None:
        self._engine.dispose()


def file_url(file: str | Path) -> str:
    """Return the URL of an SQLite file, whatever characters its name has."""
    return URL.create("sqlite", database=str(file)).render_as_string()


def default_url() -> str:
    """Return the ledger of deployments: one for all runs of this user."""
    return file_url(Path.home() / ".fedprivacy" / "ledger.db")


def ledger_url(named: str) -> str:
    """Return the URL of a ledger that is named by its URL or by its SQLite file, independent of the working directory.

    Raises:
        LedgerError: the name is invalid, see `database_file`.
    """
    file = database_file(url := named if _SCHEME.match(named) else file_url(named))
    if file is None:
        return url
    if file.is_dir():
        raise LedgerError(f"ledger is '{file}', which is a folder; name a file, such as {file / 'ledger.db'}.")
    return file_url(file)


def check_folder(url: str) -> None:
    """Refuse a ledger in a folder that does not exist: it is misspelt, or a disk is missing.

    Raises:
        LedgerError: the folder does not exist.
    """
    if (file := database_file(url)) and (problem := without_folder("ledger", file)):
        raise LedgerError(problem)


def database_file(url: str) -> Path | None:
    """Return the file of an SQLite ledger's URL; None for PostgreSQL.

    Raises:
        LedgerError: the text is no URL, or names another database, or one in memory, which would lose charges.
    """
    parsed = _parse_url(url)
    if parsed.password is not None or parsed.query.keys() & _SECRETS:
        raise LedgerError(
            "ledger's URL holds a password, which would be kept in the run's folder for all to read; leave it out, and "
            "put it into ~/.pgpass or PGPASSWORD."
        )
    if parsed.drivername == _POSTGRESQL and parsed.database:
        return None
    in_memory = not parsed.database or ":memory:" in parsed.database or parsed.database.startswith("file:")
    if parsed.get_backend_name() != "sqlite" or in_memory or parsed.query:
        raise LedgerError(
            f"ledger is '{without_password(url)}'; it must be an SQLite file on disk or a PostgreSQL database: write "
            f"sqlite:///path/to/ledger.db or {_POSTGRESQL}://user@host/name."
        )
    return Path(str(parsed.database)).absolute()


def without_password(url: str) -> str:
    """Format a ledger's URL for a message: without its password. Raises LedgerError: the text is no URL."""
    return _parse_url(url).difference_update_query(_SECRETS).render_as_string(hide_password=True)


def _parse_url(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # a port that is no number is a ValueError
        raise LedgerError("ledger is no URL; write path/to/ledger.db, or sqlite:///path/to/ledger.db.") from None


def _engine(url: str, patience: float, durable: bool) -> Engine:
    file = database_file(url)
    if file is None:
        return _postgresql(url, patience, durable)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"ledger is '{url}', which cannot be opened ({error}); name a writable file.") from error
    engine = create_engine(URL.create("sqlite", database=str(file)), connect_args={"timeout": patience})
    event.listen(engine, "connect", partial(_configure_sqlite, durable))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def reading_engine(file: Path, patience: float) -> Engine:
    """Connect to an SQLite file that may be in a folder where nothing can be written."""

    def connect() -> sqlite3.Connection:
        alone = not os.access(file.parent, os.W_OK) and not file.with_name(f"{file.name}-wal").exists()
        uri = f"{file.absolute().as_uri()}?mode=ro{'&immutable=1' * alone}"
        return sqlite3.connect(uri, timeout=patience, uri=True, isolation_level=None, check_same_thread=False)

    engine = create_engine(URL.create("sqlite", database=str(file)), creator=connect)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql(url: str, patience: float, durable: bool) -> Engine:
    try:
        # Without an encoding of the client's own, texts of an SQL_ASCII database would come as bytes.
        settings = {"connect_timeout": 10, "client_encoding": "UTF8"}
        engine = create_engine(url, pool_pre_ping=True, connect_args=settings)
    except ModuleNotFoundError:
        raise LedgerError(
            f"ledger is '{without_password(url)}', and this Python has no driver for PostgreSQL; install "
            "'fedprivacy[postgres]'."
        ) from None
    event.listen(engine, "connect", partial(_configure_postgresql, without_password(url), patience, durable))
    return engine


def _configure_sqlite(durable: bool, connection: Any, _: object) -> None:
    connection.isolation_level = None  # SQLAlchemy opens transactions itself, see `_begin_sqlite`
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    alone = connection.get_execution_options().get(_ALONE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if alone else "BEGIN")


def _configure_postgresql(name: str, patience: float, durable: bool, connection: Any, _: object) -> None:
    if (encoding := connection.info.parameter_status("server_encoding")) == "SQL_ASCII":
        database = connection.info.dbname
        raise LedgerError(
            f"ledger {name} has encoding {encoding}, which keeps bytes of any meaning; make one with UTF8: "
            f"'createdb --encoding=UTF8 --template=template0 {database}-utf8', and name that one."
        )
    connection.execute(f"SET synchronous_commit = {'on' if durable else 'off'}")
    connection.execute(f"SET lock_timeout = {max(1, round(1000 * patience))}")  # milliseconds; 0 would be for ever
    connection.commit()


_ALONE = "fedprivacy_alone"
_LOCK = 0x66656470726976  # arbitrary, and used by nothing else in this database

_SQLITE_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    }
)
_POSTGRESQL_PASSING = ("08", "40", "53", "55P03", "57")
"""Classes of SQLSTATE that may pass: connection lost, conflict of transactions, out of resources, locked, shut down."""


def _passes(error: DBAPIError) -> bool:
    """Return whether an error may pass in a moment."""
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_PASSING
    state = getattr(error.orig, "sqlstate", None)
    return state.startswith(_POSTGRESQL_PASSING) if state else type(error.orig).__name__ == "OperationalError"


def _is_locked(error: DBAPIError) -> bool:
    """Return whether another process has locked the database for a moment."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _reason(error: DBAPIError) -> str:
    return str(error.orig).splitlines()[0].rstrip(".")


def among(dialect: Dialect, column: Column[str], values: Collection[str]) -> ColumnElement[bool]:
    """Test whether a column is one of the values."""
    return _is_one_of(dialect.name, column, bindparam(None, _parameter(dialect.name, values), _many(dialect.name)))


def is_given(dialect: str, column: Column[str]) -> ColumnElement[bool]:
    """Test whether a column is one of the values in `given`.

    Statements with it can be made once and be executed with any values; making one takes longer than executing it.
    """
    return _is_one_of(dialect, column, bindparam(_GIVEN, type_=_many(dialect)))


def given(dialect: str, values: Collection[str]) -> dict[str, list[str] | str]:
    """Return the parameter of a statement with `is_given`."""
    return {_GIVEN: _parameter(dialect, values)}


def _is_one_of(dialect: str, column: Column[str], values: BindParameter[Any]) -> ColumnElement[bool]:
    """Test whether a column is one of the values of one parameter: databases limit parameters to some thousands."""
    if dialect == "postgresql":
        # A join, because PostgreSQL compares `= ANY (array)` one by one when it plans for arrays of any length.
        return column.in_(select(func.unnest(values)))
    return column.in_(select(func.json_each(values).table_valued("value").c.value))


def _parameter(dialect: str, values: Collection[str]) -> list[str] | str:
    return list(values) if dialect == "postgresql" else json.dumps(list(values))


def _many(dialect: str) -> TypeEngine[Any]:
    return ARRAY(String) if dialect == "postgresql" else String()


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have the same columns."""
    if connection.dialect.name == "postgresql":
        connection.execute(_from_arrays(table, rows))
    else:
        connection.execute(insert(table), rows)


def put_rows(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], sums: Collection[str] = ()
) -> None:
    """Insert rows that have the same columns, each replacing the row with its primary key, if there is one.

    Args:
        connection: connection in a transaction.
        table: target table.
        rows: rows with distinct keys.
        sums: columns whose values are added to existing ones.
    """
    if not rows:
        return
    names = tuple(rows[0])
    if connection.dialect.name == "postgresql":
        connection.execute(_replacing(_from_arrays(table, rows), names, sums))
    else:
        connection.execute(_sqlite_put(table, names, tuple(sums)), rows)


@cache
def _sqlite_put(table: Table, names: Sequence[str], sums: Collection[str]) -> sqlite.Insert:
    return _replacing(sqlite.insert(table), names, sums)


def _replacing(new: _Insert, names: Sequence[str], sums: Collection[str]) -> _Insert:
    """Let new rows replace those with their primary keys; `sums` are columns whose values are added."""
    key = [column.name for column in new.table.primary_key]
    amounts = {name: new.excluded[name] for name in names if name not in key}
    instead = {name: new.table.c[name] + amount if name in sums else amount for name, amount in amounts.items()}
    return new.on_conflict_do_update(index_elements=key, set_=instead)


def _from_arrays(table: Table, rows: Sequence[Mapping[str, Any]]) -> postgresql.Insert:
    """Make one statement for any number of rows, with an array for each column: psycopg would send one for each row."""
    names, arrays = list(rows[0]), []
    for name in names:
        kind: TypeEngine[Any] = table.c[name].type
        values = [row[name] for row in rows]
        if isinstance(kind, Enum):
            kind, values = String(), [str(value) for value in values]
        arrays.append(func.unnest(bindparam(None, values, type_=ARRAY(kind))))
    return postgresql.insert(table).from_select(names, select(*arrays))
