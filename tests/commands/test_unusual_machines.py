"""No byte of a run depends on threads, home, locale, time zone or shared memory."""

import subprocess
import sys

import pytest

from tests.commands.running import ENVIRONMENT, fedprivacy
from tests.runs.rounds import same_results

JOB = ("simulate", "--task", "cancer", "--rounds", "2", "--seed", "3", "--out", "run")

pytestmark = pytest.mark.exhaustive


def ran(folder, *options, clients=4, shell=(), variables=None, **started):
    """The rounds and the model of a run, as bytes, in a process of its own."""
    command = [*shell, sys.executable, "-m", "fedprivacy", *JOB, "--clients", str(clients), *options]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1"} | (variables or {})
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600, **started
    )
    assert done.returncode == 0, done.stderr
    return same_results(folder / "run")


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Run the job in this process, on this machine as it is."""
    folder = tmp_path_factory.mktemp("usual")
    fedprivacy(*JOB, "--clients", "4", cwd=folder)
    return same_results(folder / "run")


NOWHERE = {"HOME": "/proc/no-home", "XDG_CACHE_HOME": "/proc/no-home"}
NO_UTF8 = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_run_has_the_same_bytes(usual, tmp_path):
    """With 64 threads, in another time zone, with a home that cannot be written and no UTF-8."""
    assert ran(tmp_path, variables={"OMP_NUM_THREADS": "64", "TZ": "Asia/Kathmandu"} | NOWHERE | NO_UTF8) == usual


@pytest.mark.soak
def test_workers_need_no_shared_memory(tmp_path):
    """Some containers have no /dev/shm: here it is covered by a folder that cannot be written."""
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro,size=4k none /dev/shm && exec "$@"', "sh")
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root hides a folder")
    options = ("--workers", "2")
    usual = ran(tmp_path / "with", *options, clients=100)
    assert ran(tmp_path / "without", *options, clients=100, shell=hidden) == usual
