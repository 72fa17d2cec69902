"""The PostgreSQL of the tests is a real one: it keeps what was committed, and only that."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool


def execute(url, *statements):
    """Run the statements in one transaction; the last one's single value."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        return results[-1].scalar() if results[-1].returns_rows else None


def test_the_server_is_a_current_one_that_writes_through(postgres_url):
    assert int(execute(postgres_url, "SHOW server_version_num")) >= 130_000
    assert execute(postgres_url, "SHOW fsync") == execute(postgres_url, "SHOW synchronous_commit") == "on"


def test_a_committed_value_survives_a_crash_and_an_open_transaction_does_not(postgres, postgres_url):
    execute(postgres_url, "CREATE TABLE kept (value int)", "INSERT INTO kept VALUES (7)")
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO kept VALUES (100)"))
        postgres.kill()
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1"))
    postgres.start()
    assert execute(postgres_url, "SELECT sum(value) FROM kept") == 7
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM kept")).scalar() == 1
    engine.dispose()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_stopped_server_answers_nobody_and_starts_again(postgres, postgres_url, mode):
    postgres.stop(mode)
    assert not postgres.running
    with pytest.raises(OperationalError):
        execute(postgres_url, "SELECT 1")
    postgres.start()
    assert execute(postgres_url, "SELECT 1") == 1


def test_two_databases_are_separate(postgres, postgres_url):
    other = postgres.new_database()
    execute(postgres_url, "CREATE TABLE mine (value int)")
    assert execute(postgres_url, "SELECT to_regclass('mine')::text") == "mine"
    assert execute(other, "SELECT to_regclass('mine')::text") is None
    postgres.drop_database(other)
