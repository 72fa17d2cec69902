"""`fedprivacy dashboard` and `simulate --dashboard`: where they listen, what they say, how they end."""

import functools
import json
import os
import socket
import ssl
import subprocess
import sys

import httpx
import pytest

from fedprivacy.commands.app import app
from fedprivacy.dashboard.service import TOKEN as VARIABLE
from fedprivacy.dashboard.service import Address, Opened, dashboard_beside
from fedprivacy.deploy.keys import write_keys
from tests.dashboard.shown import TOKEN
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
