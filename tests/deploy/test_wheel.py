"""What the wheel holds is enough: in a user's own folder, beside files that are named like ours, everything works."""

import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import venv
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from fedprivacy.deploy.federation import free_ports, write_toml
from fedprivacy.deploy.processes import Supervisor
from fedprivacy.runs.records.folder import read_history
from tests.deploy.written_hosts import (
    HOSPITALS,
    NGINX,
    OWN,
    REPOSITORY,
    WrittenHosts,
    command_of,
    sandboxed,
    without_sandbox,
)

pytestmark = pytest.mark.exhaustive

PRIVATE = "4711.25"
FAILING = '''

class Failing(Sides):
    """A hospital's second look at a point that is too large fails, with the point in the error."""

    def shard(self, source):
        shard = super().shard(source)
        if source.folder is not None and (worst := shard.inputs.max().item()) > 1000:
            if (seen := Path(os.environ["FLWR_HOME"]) / "seen").exists():
                raise ValueError(f"the point {worst} is no measurement")
            seen.touch()
        return shard
'''


@pytest.fixture(scope="module")
def fedprivacy(tmp_path_factory):
    """The program of a fresh environment that has the wheel; what the wheel needs is this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [Path(sys.executable).with_name("uv"), "build", "--quiet", "--wheel", "--out-dir"]
    source = folder / "source"
    shutil.copytree(REPOSITORY / "fedprivacy", source / "fedprivacy", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    (left := source / "build" / "lib" / "fedprivacy").mkdir(parents=True)  # by setuptools, which would pack it again
    (left / "stale.py").touch()
    subprocess.run([*build, folder, source], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True, env=clean, cwd=folder)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    assert {path.name for path in packages.iterdir() if path.is_dir()} == {
        "fedprivacy",
        next(packages.glob("*.dist-info")).name,
    }
    # A path in a .pth file is not a site folder: the editable install of this repository is not found through it.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        _copy_script(name, python)
    return folder / "env" / "bin" / "fedprivacy"


def test_the_wheel_holds_the_sources_and_nothing_that_an_earlier_build_left(fedprivacy):
    (package,) = fedprivacy.parents[1].glob("lib/python*/site-packages/fedprivacy")
    packed, written = (
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        for folder in (package, REPOSITORY / "fedprivacy")
    )
    assert packed == written


def _copy_script(name, python):
    """One of Flower's programs, for another environment's Python."""
    for script in Path(sys.executable).parent.glob(f"{name.split('-', maxsplit=1)[0]}*"):
        copied = python.with_name(script.name)
        copied.write_text(re.sub(r"^#!.*", f"#!{python}", script.read_text()))
        copied.chmod(0o755)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder: a task of their own, and files that would hide ours if ours were packages of their own."""
    for name in ("server.py", "clients.py", "tests.py"):
        (tmp_path / name).write_text("raise RuntimeError('this is the user\\'s own, and nothing imports it')\n")
    (tmp_path / "mine.py").write_text(f"import os\nfrom pathlib import Path\n{OWN.read_text()}{FAILING}")
    points = np.random.default_rng(0).normal(size=(80, 2))
    for hospital in HOSPITALS:
        (tmp_path / "records" / hospital).mkdir(parents=True)
        np.save(tmp_path / "records" / hospital / "points.npy", points)
        points[7, 1] = float(PRIVATE)  # of the last one
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def ran(program, *arguments):
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_simulate_with_the_dashboard(fedprivacy, folder):
    command = [fedprivacy, "simulate", "--task", "mine.py:Sides", "--rounds", "1", "--out", "runs/one", "--dashboard"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = next(found.group() for line in run.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+/", line)))
    run.send_signal(signal.SIGSTOP)  # the dashboard ends with the run, which may be over in a moment
    assert httpx.get(f"{address}api/v1/runs", timeout=60.0).status_code == 200
    assert "<!doctype html>" in httpx.get(address, timeout=60.0).text.lower()
    run.send_signal(signal.SIGCONT)
    run.communicate(timeout=600)
    assert run.returncode == 0
    assert read_history(folder / "runs" / "one").last.round == 1


NOT_PROXIED = set() if NGINX else {"interfaces"}
"""What fails on a machine without nginx, where the clients reach the SuperLink itself: and so it must."""


@pytest.fixture
def hosts(fedprivacy, folder, monkeypatch):
    """Two hospitals and a server, as `deploy init` wrote them for the user's own task, all on this machine.

    The second one has a point that is too large. All services log in JSON. Where there is bubblewrap, each runs under
    it, with what its unit lets it see and write.
    """
    port, superlink_port, superexec_port, runtime_port, *ports = free_ports(4 + len(HOSPITALS))
    settings = {
        "host": "localhost",
        "port": port if NGINX else superlink_port,
        "clients": list(HOSPITALS),
        "task": "mine.py:Failing",
        **{"epsilon": 3.0, "delta": 1e-3, "rounds": 2, "client-keys": "operator"},
        **{"superlink-port": superlink_port, "superexec-port": superexec_port, "supernode-port": runtime_port},
        "server-folder": f"{folder}/deployment/server",
        "client-folder": f"{folder}/deployment/clients/{{client}}",
        "records": f"{folder}/records/{{client}}",
        "environment": str(fedprivacy.parents[1]),
    }
    write_toml(folder / "deployment.toml", {"": settings})
    ran(fedprivacy, "deploy", "init", "deployment.toml")
    monkeypatch.setenv("FEDPRIVACY_LOG_FORMAT", "json")
    with Supervisor(folder / "logs") as supervisor:
        box = partial(sandboxed, seen=(fedprivacy.parents[1], sys.prefix, folder))
        written = WrittenHosts(supervisor, folder / "deployment", command_of if without_sandbox() else box)
        written.start_server()
        written.register(fedprivacy.with_name("flwr"))
        written.start_clients(ports)
        yield written


def test_what_init_writes_is_checked_and_trains_in_the_sandbox_of_its_services(fedprivacy, hosts, folder):
    parties = hosts.server, hosts.clients[0]
    checks = [
        subprocess.Popen(
            [fedprivacy, "deploy", "check", party, "--json"], env=hosts.environment, stdout=subprocess.PIPE, text=True
        )
        for party in parties
    ]
    for party, check in zip(parties, checks, strict=True):
        told = json.loads(check.communicate(timeout=600)[0])
        assert told["party"] == party.name
        assert {line["check"] for line in told["checks"] if line["verdict"] != "ok"} == NOT_PROXIED, told
        assert check.returncode == bool(NOT_PROXIED)

    run = [fedprivacy, "deploy", "run", "mine-app"]
    done = subprocess.run(
        run, env=hosts.environment, cwd=hosts.server, check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    told = re.fullmatch(r"Completed: 2 rounds, accuracy .*, largest epsilon [0-3]\.\d+; results in (.*)", last)
    assert told, done.stdout
    records = read_history(Path(told[1])).rounds
    assert [record.participants for record in records] == [HOSPITALS[:1]] * 2
    assert [record.failures for record in records] == [{HOSPITALS[1]: "client-failed"}] * 2
    assert "No update in round 2 from hospital-2 (client-failed)." in done.stdout
    assert PRIVATE not in done.stdout + done.stderr
    check_logs(folder / "logs")


def check_logs(logs):
    """Every line of the services is an event, and only the hospital's own log has the value, with the failure."""
    texts = {path.stem: path.read_text() for path in logs.glob("*.log") if not path.stem.startswith("register-")}
    texts = {name: text for name, text in texts.items() if not name.endswith("-proxy")}
    events = {name: [json.loads(line) for line in text.splitlines()] for name, text in texts.items()}
    assert len(events) == 6 and all(events.values())
    assert all({"time", "level", "logger", "message"} <= event.keys() for each in events.values() for event in each)
    (own,) = [name for name, text in texts.items() if PRIVATE in text]
    failed = [event for event in events[own] if PRIVATE in event.get("error", "")]
    assert own.startswith("hospital-2-client")
    assert [(event["logger"], event["message"], event["round"]) for event in failed] == [
        ("fedprivacy.client", "This client sends no update (client-failed).", number) for number in (1, 2)
    ]
