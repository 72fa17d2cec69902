"""Where SQLite and PostgreSQL say the same thing in different words."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Dialect, Table, bindparam, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import ARRAY, Enum, String, TypeEngine


def among(dialect: Dialect, column: Column[str], values: Collection[str]) -> ColumnElement[bool]:
    """Whether a column is one of the values; one parameter, because databases take no more than some thousand."""
    if dialect.name == "postgresql":
        # A join: `= ANY (array)` is compared one by one once PostgreSQL plans for arrays of any length.
        given = bindparam(None, list(values), type_=ARRAY(String))
        return column.in_(select(func.unnest(given)))
    return column.in_(select(func.json_each(json.dumps(list(values))).table_valued("value").c.value))


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that name the same columns."""
    if connection.dialect.name == "postgresql":
        connection.execute(_from_arrays(table, list(rows[0]), rows))
    else:
        connection.execute(insert(table), rows)


def put_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, each in place of the one with its primary key, if there is one. No key stands twice."""
    if not rows:
        return
    key, names = [column.name for column in table.primary_key], list(rows[0])
    if connection.dialect.name == "postgresql":
        new = _from_arrays(table, names, rows)
        instead = {name: new.excluded[name] for name in names if name not in key}
        connection.execute(new.on_conflict_do_update(index_elements=key, set_=instead))
    else:
        connection.execute(sqlite.insert(table).prefix_with("OR REPLACE"), rows)


def add_to(connection: Connection, table: Table, sums: Collection[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add to the sums of each row's key, or begin them.

    Args:
        connection: in a transaction.
        table: its primary key names a row.
        sums: the columns that are added to.
        rows: the key's columns and the amounts; other columns are left out. No key stands twice.
    """
    key = [column.name for column in table.primary_key]
    names = [*key, *sums]
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        new = _from_arrays(table, names, rows)
        more = {name: table.c[name] + new.excluded[name] for name in sums}
        connection.execute(new.on_conflict_do_update(index_elements=key, set_=more))
    else:
        added = sqlite.insert(table)
        more = {name: table.c[name] + added.excluded[name] for name in sums}
        amounts = [{name: row[name] for name in names} for row in rows]
        connection.execute(added.on_conflict_do_update(index_elements=key, set_=more), amounts)


def _from_arrays(table: Table, names: list[str], rows: Sequence[Mapping[str, Any]]) -> postgresql.Insert:
    """One statement for any number of rows, with an array for each column: psycopg would send one for each row."""
    arrays = []
    for name in names:
        kind: TypeEngine[Any] = table.c[name].type
        values = [row[name] for row in rows]
        if isinstance(kind, Enum):
            kind, values = String(), [str(value) for value in values]
        arrays.append(func.unnest(bindparam(None, values, type_=ARRAY(kind))))
    return postgresql.insert(table).from_select(names, select(*arrays))
