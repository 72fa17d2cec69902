"""Fixtures of tests that start whole deployments."""

import pytest

from tests.conftest import lacking
from tests.deploy.written_hosts import BWRAP, without_sandbox


@pytest.fixture(scope="session")
def bubblewrap():
    """Skips the test where the kernel lets nobody make a sandbox, as in some containers: nothing can be installed."""
    if BWRAP is None:
        lacking("no bubblewrap; install it, for example apt-get install bubblewrap")
    if reason := without_sandbox():
        pytest.skip(f"no sandbox can be made here: {reason}")
