"""Flower's SuperLink on a database that holds large models: `python -m fedprivacy.deploy.superlink OPTIONS`.

The SuperLink keeps every message, with its model, in one SQLite file. Its writers wait for each other for at most five
seconds, and forgetting a model of 400 MB takes longer in SQLite's default settings: requests then fail with "database
is locked", and the run with them. Here they wait for minutes, and forgetting takes a sixth of the time. The options
are those of `flower-superlink`.
"""

import sqlite3
from importlib.metadata import entry_points
from typing import Any

from sqlalchemy import Engine, Pool, event

PATIENCE = 300_000
"""Milliseconds that a writer waits for another."""

PAGE = 65536
"""Bytes of a page of a new file, SQLite's largest: a model is then spread over few."""


@event.listens_for(Engine, "connect")
def _for_large_values(connection: Any, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute(f"PRAGMA page_size = {PAGE}")  # a file that exists keeps its own
        connection.execute("PRAGMA secure_delete = OFF")  # else every byte of a forgotten model is overwritten twice


@event.listens_for(Pool, "checkout")
def _wait(connection: Any, _record: object, _proxy: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE}")  # each time, since Flower sets its own on connecting


if __name__ == "__main__":
    (program,) = entry_points(group="console_scripts", name="flower-superlink")
    program.load()()
