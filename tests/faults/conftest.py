"""What the tests of faults share with those of whole runs, and processes to be killed."""

import multiprocessing

import pytest

from tests.flower.conftest import ledger_url

__all__ = ["ledger_url"]


@pytest.fixture(scope="session")
def processes():
    """Children of a process that has everything imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.life"])
    return context
