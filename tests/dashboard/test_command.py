"""`fedprivacy dashboard` and `simulate --dashboard`: where they listen, what they say and log, how they end.

Also what a platform reads of them: `/healthz`, and one line of the log for each request.
"""

import functools
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from fedprivacy._support.logs import LogFormat, LogLevel, LogSettings
from fedprivacy.commands.app import app
from fedprivacy.dashboard.service import TOKEN as VARIABLE
from fedprivacy.dashboard.service import Address, Opened, dashboard_beside
from fedprivacy.deploy.keys import write_keys
from fedprivacy.ledger import Ledger
from fedprivacy.runs.records import catalogue
from tests.dashboard.shown import TOKEN, asking
from tests.terminal import CliRunner

get = functools.partial(httpx.get, timeout=60.0)


@pytest.fixture
def opened(monkeypatch):
    """Opens dashboards that end with the test; gives what each says in JSON."""
    monkeypatch.delenv(VARIABLE, raising=False)
    processes = []

    def start(*options, token=None):
        arguments = [*map(str, options), "--port", "0", "--json", "--until-stdin-ends"]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "fedprivacy", "dashboard", *arguments],
                env=os.environ | ({VARIABLE: token} if token else {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return json.loads(processes[-1].stdout.readline())

    yield start
    for process in processes:
        process.communicate()
        assert process.returncode in (0, -15)


@pytest.fixture
def taken():
    """A port that somebody else listens to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refusal(*options, token=None):
    """The words with which the command refuses to start, in this process: it loads nothing then."""
    run = CliRunner().invoke(app, ["dashboard", *map(str, options)], env={VARIABLE: token})
    assert run.exit_code == 2, run.output
    return run.output


@pytest.mark.exhaustive
def test_the_page_is_open_when_the_command_says_so_to_other_machines_with_the_token_that_is_made(opened, runs):
    """One that is given opens in the test of TLS."""
    page = opened("--store", runs, "--host", "0.0.0.0")
    url, bearer = page["url"].replace("0.0.0.0", "127.0.0.1"), {"Authorization": f"Bearer {page['token']}"}
    assert len(page["token"]) > 40 and get(f"{url}api/v1/runs").status_code == 401
    assert get(f"{url}api/v1/runs", headers=bearer).json()["total"] == 3
    script = get(f"{url}static/vega.js", headers=bearer)
    assert "vegaEmbed" in script.text and script.headers["content-encoding"] == "gzip"
    again = get(f"{url}static/vega.js", headers=bearer | {"If-None-Match": script.headers["etag"]})
    assert again.status_code == 304


def test_what_people_are_told():
    words = Opened("http://0.0.0.0:8050/", "made", True, True).words("fedprivacy", ["runs"])
    assert "made" in words and "in clear" in words and "--tls-certificate" in words
    words = Opened("https://0.0.0.0:8050/", None, True, False).words("fedprivacy", ["runs"])
    assert VARIABLE in words and "in clear" not in words
    words = Opened("http://127.0.0.1:8050/", None, False, False).words("fedprivacy", [])
    assert "simulate --dashboard" in words and "token" not in words


def test_what_cannot_be_served_is_refused_with_the_remedy(runs, taken, tmp_path):
    assert "another port" in refusal("--store", runs, "--port", taken)
    assert "host of this machine" in refusal("--store", runs, "--host", "192.0.2.1", token=TOKEN)
    assert f"at least 16 characters into {VARIABLE}" in refusal("--store", runs, "--host", "0.0.0.0")
    assert "at least 16" in refusal("--store", runs, token="short")
    assert "where there is none" in refusal("--store", tmp_path / "none.db")
    assert "give both, or neither" in refusal("--store", runs, "--tls-key", tmp_path / "none.pem")


@pytest.mark.exhaustive
def test_tls_is_served(opened, runs, tmp_path):
    keys = write_keys(tmp_path / "keys")
    files = ("--tls-certificate", keys.server_certificate, "--tls-key", keys.server_key)
    page = opened("--store", runs, *files, "--host", "0.0.0.0", token=TOKEN)
    assert page["token"] is None and page["url"].startswith("https://0.0.0.0:")
    url = page["url"].replace("0.0.0.0", "127.0.0.1")
    with httpx.Client(timeout=60.0, verify=ssl.create_default_context(cafile=str(keys.ca_certificate))) as ask:
        assert ask.get(f"{url}api/v1/runs").status_code == 401
        entered = ask.post(f"{url}login", data={"token": TOKEN})
        assert "secure" in entered.headers["set-cookie"].lower()


@pytest.mark.exhaustive
def test_a_dashboard_beside_a_run_takes_another_port_and_ends_with_it(runs, taken):
    with dashboard_beside([str(runs)], Address(port=taken)) as page:
        assert f":{taken}/" not in page
        assert get(f"{page}api/v1/runs").status_code == 200
    with pytest.raises(httpx.ConnectError):
        get(f"{page}api/v1/runs")


@pytest.mark.exhaustive
def test_to_look_at_runs_loads_neither_torch_nor_flower():
    heavy = "{'torch', 'flwr', 'ray', 'sklearn'}"
    code = f"import sys, fedprivacy.dashboard.service; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


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
    page, stranger = asking(runs, token=token), {"Host": "page.hospital.example"}
    assert page.get("/healthz?run=done&verbose=1", headers=stranger).json() == OK
    assert page.post("/healthz").status_code == 405
    for near in ("/healthz/", "/healthz/runs", "/healthz/../api/v1/runs", "/Healthz"):
        assert page.get(near, headers=stranger, follow_redirects=False).status_code in {401, 421}


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


@pytest.mark.parametrize(("level", "unlogged"), [("debug", 0), ("info", 1), ("warning", 2)])
def test_the_level_decides_whether_requests_and_probes_are_logged(runs, capsys, level, unlogged):
    LogSettings(LogFormat.JSON, LogLevel(level)).begin()
    page, paths = asking(runs, token=TOKEN), ["/healthz", "/login", "/metrics"]
    for path in paths:
        page.get(path)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [e["path"] for e in events if e["logger"] == "fedprivacy.dashboard.access"] == paths[unlogged:]


@pytest.mark.exhaustive
def test_a_token_that_is_made_is_never_left_in_a_log(runs):
    command = [sys.executable, "-m", "fedprivacy", "dashboard", "--store", str(runs), "--host", "0.0.0.0"]
    without = {name: value for name, value in os.environ.items() if name != VARIABLE}
    run = subprocess.run([*command, "--log-format", "json"], env=without, capture_output=True, text=True, check=False)
    (line,) = run.stderr.splitlines()
    assert run.returncode == 2 and f"characters into {VARIABLE}" in json.loads(line)["message"]
