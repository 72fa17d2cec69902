"""Where SQLite and PostgreSQL say the same thing in different words."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Dialect, Table, any_, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import ARRAY, String


def among(dialect: Dialect, column: Column[str], values: Collection[str]) -> ColumnElement[bool]:
    """Whether a column is one of the values; one parameter, because databases take no more than some thousand."""
    if dialect.name == "postgresql":
        return column == any_(bindparam(None, list(values), type_=ARRAY(String)))
    return column.in_(select(func.json_each(json.dumps(list(values))).table_valued("value").c.value))


def add_to(connection: Connection, table: Table, sums: Collection[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Add to the sums of each row's key, or begin them.

    Args:
        connection: in a transaction.
        table: its primary key names a row.
        sums: the columns that are added to.
        rows: the key's columns and the amounts; other columns are left out.
    """
    key = [column.name for column in table.primary_key]
    amounts = [{name: row[name] for name in (*key, *sums)} for row in rows]
    if not amounts:
        return
    if connection.dialect.name == "postgresql":
        new = postgresql.insert(table)
        more = {name: table.c[name] + new.excluded[name] for name in sums}
        connection.execute(new.on_conflict_do_update(index_elements=key, set_=more), amounts)
    else:
        added = sqlite.insert(table)
        more = {name: table.c[name] + added.excluded[name] for name in sums}
        connection.execute(added.on_conflict_do_update(index_elements=key, set_=more), amounts)
