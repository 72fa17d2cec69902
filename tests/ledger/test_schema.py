"""A ledger's tables are made in one step or not at all; one of another version is refused, and left as it was."""

import pytest
from sqlalchemy import create_engine, inspect, text

from fedprivacy.ledger import Ledger, LedgerError, database_file
from fedprivacy.ledger.schema import REVISION, metadata
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.runs.records.store import RECORD
from fedprivacy.runs.records.store.reader import RunStore
from tests.flower.blobs import Blobs, plan_of
from tests.ledger.acts import copied, dying_at, fill, journal_of, tamper
from tests.processes import at_once


@pytest.fixture
def postgres_url(empty_postgres_url):
    """Here a ledger begins with nothing."""
    return empty_postgres_url


@pytest.fixture
def url(transactional_url):
    """Here a file begins with nothing, too."""
    if file := database_file(transactional_url):
        file.unlink()
    return transactional_url


def contents(url):
    """Every table and row."""
    engine = create_engine(url)
    with engine.connect() as connection:
        tables = sorted(inspect(connection).get_table_names())
        rows = {table: connection.execute(text(f"SELECT * FROM {table}")).all() for table in tables}
    engine.dispose()
    return {table: sorted(map(repr, found)) for table, found in rows.items()}


KEEP = "alone; keep it, for what it counted stands, and use the version that made it."


@pytest.mark.parametrize("reads", [Ledger, lambda url: Ledger(url, create=False), RunStore])
@pytest.mark.parametrize(
    ("change", "revision", "remedy"),
    [
        ("DELETE FROM alembic_version", "none", KEEP),
        ("UPDATE alembic_version SET version_num = '0005'", "0005", KEEP),
        ("UPDATE alembic_version SET version_num = '9999'", "9999", "alone; update it."),
    ],
)
def test_a_ledger_of_another_version_is_refused_and_left_alone(tmp_path, change, revision, remedy, reads):
    copied(fill, url := f"sqlite:///{tmp_path / 'ledger.db'}").close()
    tamper(url, change)
    before = contents(url)
    with pytest.raises(LedgerError) as refused:
        reads(url)
    told = f"has revision {revision}, and this version of fedprivacy knows {REVISION} {remedy}"
    assert str(refused.value).startswith("ledger ") and str(refused.value).endswith(told)
    assert contents(url) == before


def test_another_program_s_tables_are_not_taken_for_a_ledger_s(url):
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE runs (name VARCHAR)"))
    engine.dispose()
    with pytest.raises(LedgerError, match="has revision none"):
        Ledger(url)
    assert contents(url) == {"runs": []}


def test_the_store_of_a_run_s_rounds_is_not_taken_for_an_account_without_charges(tmp_path):
    """It lies beside the run's ledger, and has a name like that."""
    RunWriter(tmp_path, plan_of(Blobs(), noise_multiplier=1.0)).close()
    url = f"sqlite:///{tmp_path / RECORD}"
    with pytest.raises(LedgerError, match=r"is the store of a run's rounds .* beside it as ledger\.db"):
        Ledger(url)
    assert "journal" not in contents(url)


def test_what_only_reads_makes_no_tables(url):
    with pytest.raises(LedgerError, match=r"is empty, and nothing may change it here; name the one of a run\."):
        Ledger(url, create=False)
    assert contents(url) == {}


MAKING = [
    "CREATE TABLE journal",
    "CREATE TRIGGER checkpoints_no",
    "CREATE TABLE answers",
    "INSERT INTO alembic_version",
]


def test_tables_whose_making_dies_halfway_are_not_there(url):
    for statement in MAKING:
        with dying_at(statement), pytest.raises(KeyboardInterrupt):
            Ledger(url)
        assert contents(url) == {}
    Ledger(url).close()
    assert contents(url) == {table: [] for table in metadata.tables} | {"alembic_version": [f"('{REVISION}',)"]}
    verify_ledger(fill(url))


@pytest.mark.exhaustive
def test_eight_processes_that_open_a_new_ledger_at_once_all_can_use_it(url):
    def use(number):
        ledger = Ledger(url)
        ledger.bind_keys({f"client-{number}": str(number)})
        ledger.close()

    assert at_once(*(lambda number=number: use(number) for number in range(8))) == [0] * 8
    ledger = Ledger(url)
    assert len(verify_ledger(ledger).replay.keys) == len(journal_of(ledger)) == 8
    ledger.close()
