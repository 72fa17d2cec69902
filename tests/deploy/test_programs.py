"""The programs that units start around Flower's own.

`deploy logged` makes events of whatever they print; the SuperLink's writers wait for each other; a SuperNode's process
ends when the SuperNode does, so that its unit starts it again.
"""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from fedprivacy._support import logs
from fedprivacy._support.logs import LogFormat, LogSettings
from fedprivacy.deploy.processes import Supervisor

EVENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\w+) \[([\w.]+)] (.+)")

PRINTED = r"""
import sys
print("\x1b[92mINFO \x1b[0m:      Starting Flower SuperLink", file=sys.stderr)
print("\x1b[92mINFO \x1b[0m:      ", file=sys.stderr)
print("\x1b[94mDEBUG 2026-11-27 04:55:25,420\x1b[0m:     details", file=sys.stderr)
print("INFO:     Started server process [3335]", file=sys.stderr)
print('2026-11-27T04:54:57.342Z INFO [uvicorn.access] 127.0.0.1:5 - "POST /v1/x?token=abc HTTP/1.1" 200')
print('{"time": "2026-11-27T04:54:57.342Z", "level": "WARNING", "logger": "own", "message": "m", "round": 3}')
print('{"success": true}')
print("Successfully installed")
print("\x1b[91mERROR \x1b[0m:     ServerApp raised an exception\nTraceback (most recent call last):")
print("  File \"x.py\", line 1\nValueError: one\ntwo\n")
print("During handling of the above exception, another exception occurred:\n")
print("Traceback (most recent call last):\n  File \"x.py\", line 2\nKeyError: 3")
raise SystemExit(7) if len(sys.argv) > 1 else RuntimeError("the last")
"""

EXPECTED = [
    ("INFO", "flwr", "Starting Flower SuperLink"),
    ("INFO", "uvicorn.error", "Started server process [3335]"),
    ("INFO", "uvicorn.access", '127.0.0.1:5 - "POST /v1/x HTTP/1.1" 200'),
    ("WARNING", "own", "m"),
    ("INFO", "output", '{"success": true}'),
    ("INFO", "output", "Successfully installed"),
    ("ERROR", "flwr", "ServerApp raised an exception"),
    ("ERROR", "output", "An error was printed."),
]


def logged(*program, options=()):
    """`fedprivacy deploy logged`, as a unit of systemd types it."""
    command = [sys.executable, "-m", "fedprivacy", "deploy", "logged", *options, "--", *program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_whatever_is_printed_is_json_line_by_line():
    process = logged(sys.executable, "-c", PRINTED, options=("--log-format", "json"))
    printed, errors = process.communicate()
    events = [json.loads(line) for line in errors.splitlines()]
    assert printed == "" and process.returncode == 1
    assert [(event["level"], event["logger"], event["message"]) for event in events] == EXPECTED
    assert events[2]["time"] == "2026-11-27T04:54:57.342Z" and events[3]["round"] == 3
    assert events[6]["error"].startswith("Traceback") and events[6]["error"].endswith("KeyError: 3")
    assert "ValueError: one\ntwo\n" in events[6]["error"]
    assert events[7]["error"].endswith("RuntimeError: the last")


def test_in_text_what_is_no_event_s_beginning_is_indented_and_the_program_s_exit_code_is_kept(tmp_path):
    file = tmp_path / "superlink.log"
    process = logged(sys.executable, "-c", PRINTED, "7", options=("--log-file", str(file)))
    assert process.communicate() == ("", "") and process.returncode == 7
    lines = file.read_text().splitlines()
    found = [EVENT.fullmatch(line).groups() for line in lines if not line.startswith("    ")]
    assert [groups if groups[1] != "own" else (*groups[:2], "m") for groups in found] == EXPECTED[:-1]
    assert "    ValueError: one" in lines and "\x1b" not in file.read_text()


def test_a_signal_is_forwarded_once_and_the_level_leaves_out_what_is_below():
    waits = (
        "import signal, sys, time\n"
        "def end(*_): print('ERROR: ended in order', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('WARNING: waiting', flush=True)\nprint('INFO: not shown', flush=True)\ntime.sleep(600)"
    )
    process = logged(sys.executable, "-c", waits, options=("--log-level", "warning"))
    assert process.stderr.readline().endswith("WARNING [uvicorn.error] waiting\n")
    process.send_signal(signal.SIGTERM)
    assert process.stderr.read().endswith("ERROR [uvicorn.error] ended in order\n") and process.wait() == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_the_program_ends_what_logs_it_so_that_a_stop_is_no_failure(number):
    dies = f"import os; print('INFO: last words', flush=True); os.kill(os.getpid(), {number:d})"
    process = logged(sys.executable, "-c", dies)
    assert process.communicate()[1].endswith("INFO [uvicorn.error] last words\n") and process.returncode == -number


def test_a_program_that_is_not_there_is_told_of():
    process = logged("/no/such/program", options=("--log-format", "json"))
    (line,) = process.communicate()[1].splitlines()
    assert json.loads(line)["message"].startswith("there is no file '/no/such/program'") and process.returncode == 2


@pytest.mark.parametrize("form", LogFormat)
def test_a_supervised_process_s_log_has_this_form_and_a_limit(tmp_path, monkeypatch, form):
    monkeypatch.setattr(logs, "LARGEST_FILE", 1000)
    lines = "for n in range(200): print(f'\\x1b[92mINFO \\x1b[0m:      line {n}')"
    talks = f"import time\n{lines}\nprint('ready')\ntime.sleep(600)"
    with Supervisor(tmp_path) as supervisor:
        process = supervisor.start("talker", [sys.executable, "-c", talks], events=LogSettings(form))
        supervisor.wait_until_ready(process, lambda: "ready" in process.output(), timeout=120)
        time.sleep(0.1)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6 and all(file.stat().st_size <= 1000 for file in files)
    for line in (line for file in files for line in file.read_text().splitlines()):
        assert json.loads(line)["message"] if form is LogFormat.JSON else EVENT.fullmatch(line)


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


PROGRAM = """
import sys, threading
from fedprivacy.deploy.supernode import run

def main():
    threading.Thread(target=threading.Event().wait).start()
    print("began")
    {}

run(main)
"""


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ("raise ConnectionError('certificate verify failed')", 1, "ConnectionError: certificate verify failed"),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no key')", 1, "no key"),
        ("pass", 0, ""),
    ],
)
def test_the_process_ends_with_its_program_although_a_thread_of_it_goes_on(ends, code, said):
    command = [sys.executable, "-c", PROGRAM.format(ends)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "began\n")
    assert said in done.stderr


def test_it_takes_the_options_of_flower_s_own():
    command = [sys.executable, "-m", "fedprivacy.deploy.supernode", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--root-certificates" in done.stdout
