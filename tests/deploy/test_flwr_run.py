"""`flwr run .` in this repository, as a Flower user types it, on Flower's own simulation engine (Ray)."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from fedprivacy.deploy.federation import flower_environment, free_ports, program, write_toml
from fedprivacy.deploy.processes import Supervisor
from fedprivacy.runs.records.folder import read_history
from tests.deploy.survivors import end, processes_of
from tests.slow_starts import where_it_starts

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="flwr detaches a SuperLink that only /proc can find"
)
def test_flwr_run_trains_on_flowers_own_simulation(tmp_path):
    http_port, control_port = free_ports(2)
    ray = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Ray's sockets need a short path
    environment = {
        **flower_environment(tmp_path / "flower"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http_port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control_port),
        "RAY_TMPDIR": ray,
    }
    try:
        with Supervisor(tmp_path / "logs") as supervisor:
            command = [program("flwr"), "run", ".", "--stream", "--run-config", tmp_path / "run.toml"]

            def typed(attempt):
                """Type it, which must end well; Ray's workers import the app from this folder."""
                out = tmp_path / f"out-{attempt}"
                write_toml(tmp_path / "run.toml", {"": {"rounds": 2, "out": str(out)}})
                run = supervisor.start(f"run-{attempt}", command, environment=environment, directory=REPOSITORY)
                ended = supervisor.wait(run, timeout=600)
                said = run.log.read_text()
                assert ended == 0 and "Round 2: accuracy" in said and str(out) in said, said
                return out, said

            out, said = where_it_starts(typed)
            ls = [program("flwr"), "ls", "--format", "json"]
            listed = subprocess.run(ls, env=environment, capture_output=True, check=True, timeout=600, text=True)
            statuses = [entry["status"] for entry in json.loads(listed.stdout)["runs"]]
            assert statuses.count("finished:completed") == 1, said  # a stream that ends with 0 may follow a failed run
            assert any("flower-superlink" in command for command in processes_of(tmp_path))
            end(
                tmp_path,
                re.search(r"`pkill -f ([\w-]+)` ends it", (REPOSITORY / "docs/how-to/flower-app.md").read_text())[1],
            )
            deadline = time.monotonic() + 120
            while processes_of(tmp_path) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert processes_of(tmp_path) == []  # what the page says has ended all of them
    finally:
        shutil.rmtree(ray, ignore_errors=True)
    assert processes_of(tmp_path) == []
    last = read_history(out).rounds[-1]
    assert last.round == 2
    assert last.participants == ("client-0", "client-1")
    assert not last.failures
