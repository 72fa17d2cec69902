"""The supervisor: nothing that it started, and nothing that those started, outlives its `with` block."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedprivacy.deploy import processes
from fedprivacy.deploy.processes import ProcessError, Supervisor
from tests.processes import alive

SLEEP = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
detached = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session={Path("/proc/self").exists()})
print(child.pid, detached.pid, flush=True)
"""
"""Leaves a child behind and, where the supervisor can find it, another in a session of its own, as Flower's SuperLink
does."""
FAMILY = PARENT + SLEEP


PATIENCE = 120.0


def wait_for_pids(log: Path, count: int) -> list[int]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if log.exists() and len(pids := log.read_text().split()) == count:
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise AssertionError(f"{log} holds {log.read_text()!r}")


def start_family(supervisor: Supervisor) -> list[int]:
    process = supervisor.start("family", [sys.executable, "-c", FAMILY])
    pids = [process.pid, *wait_for_pids(process.log, 2)]
    assert all(alive(pid) for pid in pids)
    return pids


def test_an_exception_stops_the_whole_family_goes_on_and_leaves_the_owner_s_signal_handlers(tmp_path):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(ZeroDivisionError), Supervisor(tmp_path) as supervisor:
        pids = start_family(supervisor)
        assert signal.getsignal(signal.SIGTERM) != before[1]
        raise ZeroDivisionError
    assert not any(alive(pid) for pid in pids)
    assert [signal.getsignal(number) for number in numbers] == before


def test_orphans_are_stopped_too(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        process = supervisor.start("parent", [sys.executable, "-c", PARENT])
        pids = wait_for_pids(process.log, 2)
        assert supervisor.wait(process, timeout=PATIENCE) == 0
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


def test_a_process_whose_environment_is_gone_is_stopped_too(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        process = supervisor.start("bare", ["env", "-i", sys.executable, "-c", f"print('ready', flush=True); {SLEEP}"])
        supervisor.wait_until_ready(process, lambda: "ready" in process.output(), timeout=PATIENCE)
    assert not process.running


def test_a_process_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.5)
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEP}"
    with Supervisor(tmp_path) as supervisor:
        process = supervisor.start("stubborn", [sys.executable, "-c", stubborn])
        supervisor.wait_until_ready(process, lambda: "deaf" in process.tail(), timeout=PATIENCE)
    assert supervisor.wait(process, timeout=PATIENCE) == -signal.SIGKILL


def test_a_process_that_is_started_during_the_stop_is_stopped_like_the_others(tmp_path, monkeypatch):
    """And is not killed once the others' time is over."""
    monkeypatch.setattr(processes, "GRACE", PATIENCE)
    hydra = f"""
import signal, subprocess, sys
def grow(*_):
    print(subprocess.Popen([sys.executable, "-c", {SLEEP!r}]).pid, flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, grow)
print("ready", flush=True)
{SLEEP}
"""
    with Supervisor(tmp_path) as supervisor:
        process = supervisor.start("hydra", [sys.executable, "-c", hydra])
        supervisor.wait_until_ready(process, lambda: "ready" in process.output(), timeout=PATIENCE)
        started = time.monotonic()
    assert time.monotonic() - started < processes.GRACE
    assert not alive(int(process.tail(1)))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_to_the_owner_stops_the_whole_family(tmp_path, number, code):
    script = f"""
import signal, sys, time
from pathlib import Path
from fedprivacy.deploy.processes import Supervisor
signal.signal(signal.SIGINT, signal.default_int_handler)  # both may have been ignored by the shell that runs the tests
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with Supervisor(Path(sys.argv[1])) as supervisor:
    supervisor.start("family", [sys.executable, "-c", {FAMILY!r}])
    time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        pids = wait_for_pids(tmp_path / "family.log", 2)
        owner.send_signal(number)
        assert owner.wait(timeout=PATIENCE) == code
    finally:
        owner.kill()
    assert not any(alive(pid) for pid in pids)


def test_a_process_that_ends_before_it_is_ready_is_reported_with_its_log(tmp_path):
    failing = "print('\\x1b[91mport 80: permission denied\\x1b[0m'); raise SystemExit(3)"
    with Supervisor(tmp_path) as supervisor:
        process = supervisor.start("server", [sys.executable, "-c", failing])
        with pytest.raises(ProcessError) as error:
            supervisor.wait_until_ready(process, lambda: False, timeout=PATIENCE)
    assert str(error.value) == (
        f"server ended with exit code 3 before it was ready. The end of {tmp_path / 'server.log'}:\n"
        "port 80: permission denied"
    )


def test_waiting_has_an_end(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        process = supervisor.start("slow", [sys.executable, "-c", SLEEP])
        with pytest.raises(ProcessError, match=r"slow was not ready within 0\.1 seconds"):
            supervisor.wait_until_ready(process, lambda: False, timeout=0.1)
        with pytest.raises(ProcessError, match=r"slow was still running after 0\.1 seconds"):
            supervisor.wait(process, timeout=0.1)


def test_a_name_that_is_used_again_continues_the_log_and_starts_a_new_output(tmp_path):
    """In the environment and the folder that are given."""
    show = "import os; print(os.environ['OWN'], os.getcwd())"
    with Supervisor(tmp_path / "logs") as supervisor:
        for word in ("first", "second"):
            process = supervisor.start(
                "node", [sys.executable, "-c", show], environment={"OWN": word}, directory=tmp_path
            )
            assert supervisor.wait(process, timeout=PATIENCE) == 0
            assert process.output() == f"{word} {tmp_path}\n"
        with pytest.raises(ProcessError, match="flower-superlonk"):
            supervisor.start("superlink", ["flower-superlonk"])
    assert process.log.read_text() == f"first {tmp_path}\nsecond {tmp_path}\n"
