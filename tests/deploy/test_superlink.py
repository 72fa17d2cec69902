"""The SuperLink's database: writers wait for each other, and a model is forgotten at little cost."""

import json
import subprocess
import sys

AS_FLOWER_USES_IT = """
import json, sqlite3, sys, threading
from pathlib import Path
from sqlalchemy import create_engine, event, text
import fedprivacy.deploy.superlink

file = Path(sys.argv[1])
engine = create_engine(f"sqlite:///{file}")

@event.listens_for(engine, "connect")
def set_pragmas(connection, _):
    connection.execute("PRAGMA busy_timeout = 10")  # milliseconds
    connection.execute("PRAGMA journal_mode = WAL")

with engine.begin() as connection:
    connection.execute(text("CREATE TABLE object (content BLOB)"))
    connection.execute(text("INSERT INTO object VALUES (zeroblob(16000000))"))
other = sqlite3.connect(file, check_same_thread=False)
other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
with engine.begin() as connection:
    connection.execute(text("DELETE FROM object"))
written = Path(f"{file}-wal").stat().st_size

other.execute("BEGIN IMMEDIATE")
threading.Timer(0.5, other.rollback).start()
with engine.begin() as connection:
    connection.execute(text("INSERT INTO object VALUES ('x')"))
    print(json.dumps([written, connection.execute(text("SELECT count(*) FROM object")).scalar()]))
"""


def test_a_writer_outwaits_flower_s_own_patience_and_a_model_is_forgotten_at_little_cost(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AS_FLOWER_USES_IT, tmp_path / "state.db"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written, rows = json.loads(done.stdout)
    assert rows == 1
    assert written < 16_000_000 / 8
