"""What all tests share: their order, a real PostgreSQL, and a real browser."""

import logging
import os
import signal
import sys
import threading
import time

import pytest

os.environ.pop("COLUMNS", None)  # xdist sets it for its processes, and a console that is made then keeps that width
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what runs in the background so, and they inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESSES = "many processes"
GROUPS = dict.fromkeys(
    (
        "tests/deploy/test_containers.py",
        "tests/deploy/test_deploy_demo.py",
        "tests/deploy/test_sandbox.py",
        "tests/deploy/test_wheel.py",
        "tests/deploy/test_flwr_run.py",
        "tests/flower/test_cluster.py",
    ),
    PROCESSES,
)
"""Each starts a dozen of Flower's or Ray's. Two at a time, and clients come so late that runs give up waiting."""

LONGEST = (
    PROCESSES,
    "tests/deploy/test_incidents.py",
    "tests/deploy/test_lock.py",
    "tests/test_site.py",
    "tests/test_notebooks.py",
    "tests/privacy/test_gates_quiet.py",
    "tests/dashboard/test_page.py",
    "tests/commands/test_audit_node.py",
    "tests/flower/test_every_way.py",
    "tests/commands/test_client_table.py",
    "tests/accounting/test_persons.py",
    "tests/gradients/test_every_layer.py",
    "tests/commands/test_simulate.py",
    "tests/ledger/test_outages.py",
    "tests/audit/apps/test_sound_apps.py",
    "tests/commands/test_audit.py",
    "tests/commands/test_sweep.py",
    "benchmarks/attacks/tests/test_page.py",
)
"""Groups, the longest first: were they begun last, one test process would wait for the others."""


def group(nodeid):
    """A file's tests stay in one test process, and so do all that start many of one kind."""
    file = nodeid.partition("::")[0]
    return GROUPS.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """By groups. (xdist's own groups are of no effect with pytest 9.)"""
    from xdist.scheduler import LoadFileScheduling  # only where tests run in several processes

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return group(nodeid)

    return Scheduling(config, log)


def pytest_collection_modifyitems(items):
    """What takes longest begins first; the rest keeps its order."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(group(item.nodeid), len(place)))


@pytest.fixture(scope="session")
def postgres():
    """A running server, one for each test process that asks for it."""
    from tests.postgres import PostgresCluster, find_programs  # and psycopg, which a machine lent for its GPU lacks

    programs = find_programs()
    if programs is None:
        lacking(
            "no PostgreSQL server on PATH or in /usr/lib/postgresql; install PostgreSQL 15, "
            "for example apt-get install postgresql"
        )
    with PostgresCluster(programs) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def new_ledger(postgres):
    """A database with the tables of a ledger, of which tests take copies: to make them takes half a second."""
    from fedprivacy.ledger import Ledger

    url = postgres.new_database()
    Ledger(url).close()
    return url


@pytest.fixture
def postgres_url(postgres, new_ledger):
    """A database of its own for each test, with a new ledger; the server runs, whatever the test before did to it."""
    yield from _database(postgres, like=new_ledger)


@pytest.fixture
def empty_postgres_url(postgres):
    """A database of its own that holds nothing."""
    yield from _database(postgres)


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium."""
    from tests.dashboard.browser import chromium
    from tests.printing import find_browser

    if find_browser() is None:
        lacking("no Chromium on PATH; install it, for example apt-get install chromium")
    with chromium() as found:
        yield found


@pytest.fixture(autouse=True)
def logs_restored():
    """A command that a test calls in this process configures its logs; the next test's are as before."""
    root, *others = (logging.getLogger(name) for name in (None, "fedprivacy", "flwr", "uvicorn"))
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in (root, *others)]
    hooks = sys.excepthook, threading.excepthook
    yield
    if root.handlers == before[0][1]:
        return
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)
    logging.captureWarnings(capture=False)
    sys.excepthook, threading.excepthook = hooks


@pytest.fixture
def undrawn(monkeypatch):
    """Runs leave no figure and no report: to draw them takes most of a small run's time."""
    monkeypatch.setattr("fedprivacy.server.recorder.draw", lambda history, folder: None)


@pytest.fixture
def in_kathmandu(monkeypatch):
    """This process is five hours and three quarters ahead of UTC."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()


def _database(postgres, like=None):
    postgres.start()
    url = postgres.new_database(like)
    yield url
    postgres.start()
    postgres.drop_database(url)


def lacking(reason):
    """Skip on a machine that lacks something; fail where the tests must be complete, as in .ci/run."""
    if os.environ.get("FEDPRIVACY_TESTS_COMPLETE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
