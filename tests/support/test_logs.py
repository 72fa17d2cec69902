"""Events of a log: one a line, in UTC, without colours or secrets; and the page that lists all of them."""

import ast
import json
import logging
import re
import subprocess
import sys

import pytest

from fedprivacy._support import logs
from fedprivacy._support.logs import FORMAT, LEVEL, EventFormatter, LogFormat, LogLevel, LogSettings, about, also_about
from tests.house import HOUSE, ROOT, module_name, tree

NAME = "fedprivacy.server"


def event(form, message="Round %d.", *arguments, **more):
    record = logging.makeLogRecord({"name": NAME, "levelno": 30, "levelname": "WARNING", "created": 1.25e9 + 0.4206})
    record.msg, record.args = message, arguments or ((3,) if "%d" in message else ())
    record.__dict__.update(more)
    return EventFormatter(form).format(record)


def test_an_event_has_its_time_its_level_its_logger_and_what_it_is_about():
    with about(run="8d1f", client="a"):
        also_about(round=3)
        text, as_json = event(LogFormat.TEXT), json.loads(event(LogFormat.JSON))
    assert text == "2009-08-11T14:13:20.420Z WARNING [fedprivacy.server] Round 3. (run=8d1f, client=a, round=3)"
    assert as_json == {
        **{"time": "2009-08-11T14:13:20.420Z", "level": "WARNING", "logger": NAME, "message": "Round 3."},
        **{"run": "8d1f", "client": "a", "round": 3},
    }
    assert event(LogFormat.TEXT).endswith("Round 3.")  # after the block


@pytest.mark.parametrize("form", LogFormat)
def test_no_text_can_pass_for_an_event_of_its_own(form):
    forged = "a client\n2026-01-01T00:00:00.000Z ERROR [fedprivacy.server] forged\r\x1b[31mred\x07\u2028end"
    written = event(form, "%s", forged)
    assert "\x1b" not in written and "\x07" not in written and "\r" not in written and "\u2028" not in written
    assert all(line.startswith("    ") for line in written.split("\n")[1:])
    if form is LogFormat.JSON:
        assert "\n" not in written and json.loads(written)["message"].startswith("a client\n2026")


@pytest.mark.parametrize("form", LogFormat)
def test_a_traceback_belongs_to_its_event_and_a_secret_to_none(form, monkeypatch):
    monkeypatch.setattr(logs, "_concealed", set())
    logs.conceal('a-"token"-of-more-than-16')
    try:
        raise ValueError('two\nlines, a-"token"-of-more-than-16')
    except ValueError as error:
        written = event(form, 'a-"token"-of-more-than-16', exc_info=(ValueError, error, error.__traceback__))
    assert "more-than-16" not in written
    if form is LogFormat.JSON:
        error = json.loads(written)["error"]
        assert error.startswith("Traceback") and error.endswith("ValueError: two\nlines, ***")
    else:
        assert written.split("\n")[-2:] == ["    ValueError: two", "    lines, ***"]


BEGUN = """
import logging, sys, warnings
from fedprivacy._support.logs import follow_environment
import flwr.supercore.logger as flower
follow_environment()
follow_environment()
flower.log(logging.INFO, "of Flower")
logging.getLogger("fedprivacy.client").debug("seen at debug")
logging.getLogger("httpx").info("never seen")
warnings.warn("of Python")
sys.stderr.flush()
raise RuntimeError("at the end")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("level", "seen"), [("debug", True), ("nonsense", False)])
def test_a_process_that_another_one_starts_follows_the_environment(level, seen):
    run = subprocess.run(
        [sys.executable, "-c", BEGUN], env={FORMAT: "json", LEVEL: level}, capture_output=True, text=True, check=False
    )
    events = [json.loads(line) for line in run.stderr.splitlines()]
    told = [(one["level"], one["logger"], one["message"]) for one in events]
    debug = [("DEBUG", "fedprivacy.client", "seen at debug")] * seen
    assert told[:-2] == [("INFO", "flwr", "of Flower"), *debug]
    assert told[-2][:2] == ("WARNING", "py.warnings") and "UserWarning: of Python" in told[-2][2]
    assert told[-1] == ("CRITICAL", "fedprivacy", "The process ends by an error.")
    assert events[-1]["error"].endswith("RuntimeError: at the end")


def test_only_a_terminal_gets_colours_and_not_if_the_user_wants_none(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    coloured = {}
    for terminal, wish in ((True, ""), (True, "1"), (False, "")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        monkeypatch.setenv("NO_COLOR", wish)
        LogSettings().begin()
        logging.getLogger("fedprivacy").error("wrong")
        coloured[terminal, wish] = "\x1b[31mERROR\x1b[0m" in capsys.readouterr().err
    assert coloured == {(True, ""): True, (True, "1"): False, (False, ""): False}


def test_a_log_file_is_limited_and_its_owner_s_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LARGEST_FILE", 400)
    LogSettings(level=LogLevel.INFO).begin(tmp_path / "page.log")
    for number in range(100):
        logging.getLogger("fedprivacy").info("Event %d.", number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["page.log", *(f"page.log.{number}" for number in range(1, 6))]
    assert all(file.stat().st_size <= 400 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert "Event 99." in files[0].read_text()


LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
ROW = re.compile(r"^\| (debug|info|warning|error|critical) \| ([\w.]+) \| `(.+?)`", flags=re.MULTILINE)
MADE = re.compile(r"^((?:flower_)?log(?:, flower_log)?) = (.*getLogger.*)$", flags=re.MULTILINE)
GAP = re.compile(r"%[.\d]*[sdg]")


def events_of(module):
    """Level, logger and text of every event that a module logs, with gaps; one that is a gap alone is left out."""
    text, loggers = module.read_text(), {}
    for names, values in MADE.findall(text):
        found = re.findall(r"getLogger\((?:\"([\w.]+)\"|__name__)\)", values)
        loggers |= {name: each or module_name(module) for name, each in zip(names.split(", "), found, strict=True)}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and node.args and getattr(node.func, "attr", "") in LEVELS:
            called = ast.unparse(node.func.value)
            logger = loggers.get(called) or called.removeprefix("logging.getLogger('").removesuffix("')")
            words = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            if logger.startswith(("fedprivacy", "flwr")) and GAP.sub("", words):
                yield {"exception": "error"}.get(node.func.attr, node.func.attr), logger, GAP.sub("…", words)


def test_the_page_lists_every_event_with_its_level_and_logger():
    page = (ROOT / "docs" / "how-to" / "logs.md").read_text()
    logged = {event for module in HOUSE for event in events_of(module)}
    assert len(logged) > 40 and logged - set(ROW.findall(page)) == set()
