"""What all tests share: their order, and a real PostgreSQL."""

import os
from pathlib import Path

import pytest

from tests.postgres import PostgresCluster, find_programs

LONGEST_FILES = (
    "faults/test_killed.py",
    "deploy/test_killed.py",
    "test_simulate.py",
    "deploy/test_deploy_demo.py",
    "dashboard/test_page.py",
    "test_resume.py",
)
"""A file's tests stay in one process; were the longest begun last, one process would wait for the other."""


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest; the others keep their order."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="session")
def postgres():
    """A running server, one for each test process that asks for it."""
    programs = find_programs()
    if programs is None:
        lacking(
            "no PostgreSQL server on PATH or in /usr/lib/postgresql; install PostgreSQL 15, "
            "for example apt-get install postgresql"
        )
    with PostgresCluster(programs) as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres):
    """A database of its own for each test; the server runs, whatever the test before did to it."""
    postgres.start()
    url = postgres.new_database()
    yield url
    postgres.start()
    postgres.drop_database(url)


def lacking(reason):
    """Skip on a machine that lacks something; fail where the tests must be complete, as in .ci/run."""
    if os.environ.get("FEDPRIVACY_TESTS_COMPLETE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
