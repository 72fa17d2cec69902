"""Fixtures of tests that start whole deployments."""

import subprocess

import pytest

from tests.conftest import lacking
from tests.deploy.written_hosts import BWRAP


@pytest.fixture(scope="session")
def bubblewrap():
    """Skips the test where the kernel lets nobody make a sandbox, as in some containers: nothing can be installed."""
    if BWRAP is None:
        lacking("no bubblewrap; install it, for example apt-get install bubblewrap")
    probe = [BWRAP, "--ro-bind", "/", "/", "--proc", "/proc", "--unshare-user", "--unshare-pid", "true"]
    done = subprocess.run(probe, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no sandbox can be made here: {done.stderr}")
