"""The page's probe and log, which a platform reads: `/healthz`, and one line for each request."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from fedprivacy._support.logs import LogFormat, LogLevel, LogSettings
from fedprivacy.dashboard.service import TOKEN as VARIABLE
from fedprivacy.ledger import Ledger
from fedprivacy.runs.records import catalogue
from tests.dashboard.shown import TOKEN, asking

OK = {"status": "ok", "broken": []}


@pytest.fixture(autouse=True)
def probed_anew(monkeypatch):
    """No result of a probe is reused."""
    monkeypatch.setattr(catalogue, "_PROBED", 0.0)


@pytest.fixture
def ledger(tmp_path):
    """The file of a ledger of its own."""
    Ledger(f"sqlite:///{tmp_path / 'ledger.db'}").close()
    return tmp_path / "ledger.db"


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_probe_is_answered_without_a_token_under_any_name_and_says_nothing_of_runs(runs, token):
    page = asking(runs, token=token)
    for host in ("localhost", "10.0.0.7:8050", "page.hospital.example"):
        answer = page.get("/healthz", headers={"Host": host})
        assert answer.status_code == 200 and answer.json() == OK
        assert page.head("/healthz", headers={"Host": host}).status_code == 200
    assert page.get("/healthz?run=done&verbose=1").json() == OK
    assert page.post("/healthz").status_code == 405
    for near in ("/healthz/", "/healthz/runs", "/healthz/../api/v1/runs", "/Healthz"):
        answer = page.get(near, headers={"Host": "page.hospital.example"}, follow_redirects=False)
        assert answer.status_code in {401, 421}


def test_a_ledger_and_a_folder_that_are_gone_are_named_and_come_back(tmp_path, ledger):
    folder = tmp_path / "runs"
    folder.mkdir()
    page = asking(ledger, folder, token=TOKEN)
    assert page.get("/healthz").json() == OK
    ledger.rename(tmp_path / "aside.db")
    answer = page.get("/healthz")
    assert answer.status_code == 503 and answer.json() == {"status": "broken", "broken": ["ledger"]}
    assert not ledger.exists()  # to look made none
    folder.rmdir()
    assert page.get("/healthz").json()["broken"] == ["ledger", "runs"]
    assert page.head("/healthz").status_code == 503
    (tmp_path / "aside.db").rename(ledger)
    folder.mkdir()
    assert page.get("/healthz").json() == OK


def test_a_file_that_became_no_ledger_is_broken(ledger):
    page = asking(ledger, token=TOKEN)
    ledger.write_bytes(b"no database at all, of any kind" * 100)
    answer = page.get("/healthz")
    assert answer.status_code == 503 and str(ledger) not in answer.text and answer.json()["broken"] == ["ledger"]


@contextmanager
def dashboard(*options, **environment):
    """`fedprivacy dashboard`, as a unit or a container types it; its URL, and afterwards its stderr by lines."""
    command = [sys.executable, "-m", "fedprivacy", "dashboard", "--port", "0", *map(str, options)]
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = [process.stderr.readline()]
    yield re.search(r"https?://[\w.:]+/", lines[0])[0].replace("0.0.0.0", "127.0.0.1"), lines
    process.terminate()
    lines += process.stderr.read().splitlines()
    assert process.stdout.read() == "" and process.wait() == -signal.SIGTERM


@pytest.mark.exhaustive
def test_the_access_log_has_a_line_for_each_request_and_never_a_token(runs):
    public = ("--store", runs, "--host", "0.0.0.0")
    with dashboard(*public, FEDPRIVACY_DASHBOARD_TOKEN=TOKEN, FEDPRIVACY_LOG_FORMAT="json") as (url, lines):
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=url, timeout=60.0) as ask:
            ask.get(f"api/v1/runs?token={TOKEN}")
            ask.get("api/v1/runs?search=private", headers=bearer)
            ask.get(f"api/v1/runs/{TOKEN}", headers=bearer)
            ask.get("healthz")
            ask.post("login", data={"token": TOKEN})
            cookie = next(iter(ask.cookies.values()))
            ask.get("metrics")
    text = "\n".join(lines)
    assert TOKEN not in text and cookie not in text and "?" not in text and "\x1b" not in text
    events = [json.loads(line) for line in lines]
    opened, in_clear, *asked = (event for event in events if event["logger"].startswith("fedprivacy.dashboard"))
    assert opened["message"].startswith("The dashboard answers at http://0.0.0.0:") and in_clear["level"] == "WARNING"
    requests = [(each["level"], each["method"], each["path"], each["status"]) for each in asked if "path" in each]
    assert requests == [
        ("WARNING", "GET", "/api/v1/runs", 401),
        ("INFO", "GET", "/api/v1/runs", 200),
        ("INFO", "GET", "/api/v1/runs/***", 404),
        ("INFO", "POST", "/login", 303),
        ("INFO", "GET", "/metrics", 200),
    ]
    assert all(each["ms"] > 0 and each["address"] == "127.0.0.1" for each in asked if "path" in each)
    assert events[-1]["message"] == "The dashboard has ended."


@pytest.mark.parametrize(
    ("level", "logged"),
    [("debug", ["/healthz", "/login", "/metrics"]), ("info", ["/login", "/metrics"]), ("warning", ["/metrics"])],
)
def test_the_level_decides_whether_requests_and_probes_are_logged(runs, capsys, level, logged):
    LogSettings(LogFormat.JSON, LogLevel(level)).begin()
    page = asking(runs, token=TOKEN)
    for path in ("/healthz", "/login", "/metrics"):
        page.get(path)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["path"] for event in events if event["logger"] == "fedprivacy.dashboard.access"] == logged


@pytest.mark.exhaustive
def test_a_token_that_is_made_is_never_left_in_a_log(runs):
    command = [sys.executable, "-m", "fedprivacy", "dashboard", "--store", str(runs), "--host", "0.0.0.0"]
    without = {name: value for name, value in os.environ.items() if name != VARIABLE}
    run = subprocess.run([*command, "--log-format", "json"], env=without, capture_output=True, text=True, check=False)
    (line,) = run.stderr.splitlines()
    assert run.returncode == 2 and f"characters into {VARIABLE}" in json.loads(line)["message"]
