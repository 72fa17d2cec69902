"""A ledger of any earlier version opens, is brought up to date in one step or not at all, and loses nothing."""

import datetime
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, select, text

from fedprivacy.ledger import Allowance, ChargeState, Ledger, LedgerError, database_file, migrations
from fedprivacy.ledger.schema import metadata
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import Unit
from tests.ledger.acts import COUNT, answers_of, ask, dying_at, fill, journal_of, tamper, unlimited
from tests.processes import at_once

EVENT = PoissonSampledGaussian(0.1, 1.0)
OTHER = PoissonSampledGaussian(0.3, 1.0 / 3.0, NeighbouringRelation.ZERO_OUT)
LONG_AGO = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
BALANCES = (
    "CREATE TABLE balances (dataset_id VARCHAR NOT NULL REFERENCES budgets (dataset_id), sampling_rate FLOAT NOT NULL, "
    "noise_multiplier FLOAT NOT NULL, relation VARCHAR(17) NOT NULL, steps INTEGER NOT NULL, charges INTEGER NOT NULL, "
    "PRIMARY KEY (dataset_id, sampling_rate, noise_multiplier, relation))"
)
MECHANISM = ("sampling_rate", "noise_multiplier", "relation")
CHARGES = [
    ("a", "one", 1, EVENT, 5, "committed"),
    ("b", "one", 1, EVENT, 5, "void"),
    ("c", "one", 1, OTHER, 2, "reserved"),
    ("a", "two", 1, EVENT, 4, "committed"),
    ("a", "one", 2, OTHER, 3, "reserved"),
    ("b", "one", 2, OTHER, 3, "committed"),
    ("b", "two", 1, EVENT, 4, "void"),  # two runs charged at once
]
ACCOUNTS = {"a": ({EVENT: 9, OTHER: 3}, 3), "b": ({OTHER: 3}, 1), "c": ({OTHER: 2}, 1)}


@pytest.fixture(autouse=True)
def made_each(monkeypatch):
    monkeypatch.setattr("fedprivacy.ledger.database.bring_up_to_date", migrations.bring_up_to_date)


def insert(connection, table, **values):
    names = ", ".join(values)
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES (:{', :'.join(values)})"), values)


def make_first_tables(connection):
    """The tables of the version that knew no migrations."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, "0001")
    connection.execute(text("DROP TABLE alembic_version"))


def fill_first_tables(connection):
    for run in ("one", "two"):
        insert(connection, "runs", run_id=run, dataset="digits", partition="3 parts", started_at=LONG_AGO)
    insert(connection, "keys", client_id="hospital-0", key_hash="aa")
    for dataset, epsilon in {"a": 3.0, "b": 0.1 + 0.2, "c": None}.items():
        terms = {"epsilon": epsilon, "delta": 1e-5, "filter": "adaptive"}
        insert(connection, "budgets", dataset_id=dataset, **terms, created_at=LONG_AGO)
    for dataset, run, round, mechanism, steps, state in CHARGES:
        cost = (mechanism.sampling_rate, mechanism.noise_multiplier, str(mechanism.relation))
        event_columns = dict(zip(MECHANISM, cost, strict=True))
        key = {"dataset_id": dataset, "run_id": run, "round": round, "attempt": 1}
        rest = {"view": "server", "steps": steps, "state": state, "charged_at": LONG_AGO}
        insert(connection, "charges", **key, **event_columns, **rest)


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


@pytest.fixture(params=["with balances", "without"])
def first(request, url):
    """The URL of a ledger that the first version wrote."""
    engine = create_engine(url)
    with engine.begin() as connection:
        make_first_tables(connection)
        fill_first_tables(connection)
        if request.param == "with balances":
            connection.execute(text(BALANCES))
            connection.execute(text("INSERT INTO balances VALUES ('a', 0.1, 1.0, 'add-or-remove-one', 9, 2)"))
    engine.dispose()
    return url


def contents(url):
    """Every table and row."""
    engine = create_engine(url)
    with engine.connect() as connection:
        tables = sorted(inspect(connection).get_table_names())
        rows = {table: connection.execute(text(f"SELECT * FROM {table}")).all() for table in tables}
    engine.dispose()
    return {table: sorted(map(repr, found)) for table, found in rows.items()}


def test_a_ledger_of_the_first_version_is_brought_up_to_date_once_loses_nothing_and_goes_on(first):
    before = contents(first)
    with pytest.raises(LedgerError, match=r"made by an earlier version.*fedprivacy ledger upgrade"):
        Ledger(first, upgrade=False)
    assert contents(first) == before
    Ledger(first).close()
    before = contents(first)
    ledger = Ledger(first)
    assert contents(first) == before and differences(ledger) == []
    accounts = ledger.accounts(["a", "b", "c"])
    assert {dataset: (account.history, account.rounds) for dataset, account in accounts.items()} == ACCOUNTS
    assert ledger.allowances(["a", "b", "c"]) == {
        "a": Allowance(PrivacyBudget(3.0, 1e-5), "adaptive"),
        "b": Allowance(PrivacyBudget(0.1 + 0.2, 1e-5), "adaptive"),
        "c": Allowance(PrivacyBudget(float("inf"), 1e-5), "adaptive"),
    }
    replay = verify_ledger(ledger).replay
    assert (len(replay.runs), replay.keys, len(replay.charges)) == (2, {"hospital-0": "aa"}, len(CHARGES))
    assert ledger.open_run("three", "digits", "3 parts") == 2
    with pytest.raises(LedgerError, match="comes with another key"):
        ledger.bind_keys({"hospital-0": "bb"})
    with pytest.raises(LedgerError, match="charged before"):
        ledger.reserve(Attempt("one", 2), EVENT, {"a": 1}, unlimited)
    assert ledger.reserve(Attempt("one", 2), OTHER, {"a": 1}, unlimited, resumed=True) == {"a": 3}
    ledger.settle(Attempt("one", 2), ["a"], ChargeState.VOID)
    ledger.settle(Attempt("one", 1), ["b"], ChargeState.COMMITTED)
    assert ledger.accounts(["a", "b"])["a"].history == {EVENT: 9}
    assert ledger.accounts(["a", "b"])["b"].history == {EVENT: 5, OTHER: 3}
    ask(ledger)
    assert [each.totals for each in ledger.answers(COUNT, ["b"])["b"]] == [answers_of("b")[1].totals]
    verify_ledger(ledger)
    ledger.close()


HALFWAY = [
    "CREATE TABLE alembic_version",
    "DROP TABLE charges",
    "CREATE TABLE journal",
    "CREATE TRIGGER checkpoints_no",
]
HALFWAY += ["INSERT INTO journal", "INSERT INTO charges", "INSERT INTO balances", "UPDATE alembic_version"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["with balances"], indirect=True)
def test_an_upgrade_that_dies_halfway_leaves_the_ledger_as_it_was(first):
    before = contents(first)
    for statement in HALFWAY:
        with dying_at(statement), pytest.raises(KeyboardInterrupt):
            Ledger(first)
        assert contents(first) == before
    ledger = Ledger(first)
    assert len(verify_ledger(ledger).replay.charges) == len(CHARGES)
    ledger.close()


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(url):
    fill(url).close()
    tamper(url, "UPDATE alembic_version SET version_num = '9999'")
    before = contents(url)
    with pytest.raises(
        LedgerError, match=r"has revision 9999, and this version of fedprivacy knows \d+ at most; update"
    ):
        Ledger(url)
    assert contents(url) == before


def test_no_ledger_goes_back_to_an_older_version(url):
    ledger = Ledger(url)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")

    def downgrade(connection, _):
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")

    with pytest.raises(NotImplementedError, match="would forget charges"):
        ledger.database.write(downgrade)
    ledger.close()


def differences(ledger):
    """Changes that Alembic would still have to make; comments are for readers of the code."""
    with ledger.database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        found = compare_metadata(context, metadata)
    return [each for each in found if not (isinstance(each, list) and each[0][0] == "modify_comment")]


def as_of(revision, url, tmp_path):
    """Make the ledger that `fill` makes as an earlier version would have written it, with its tables and columns."""
    newest = fill(f"sqlite:///{tmp_path / 'newest.db'}")
    with pytest.MonkeyPatch.context() as before:
        before.setattr(migrations, "NEWEST", revision)
        earlier = Ledger(url)
    earlier.database.write(lambda connection, _: copy_rows(newest, connection))
    for each in (earlier, newest):
        each.close()
    return url


def copy_rows(newest, connection):
    known = inspect(connection)
    for table in metadata.sorted_tables:
        if known.has_table(table.name):
            names = [column["name"] for column in known.get_columns(table.name) if column["name"] != "charge_id"]
            with newest.database.reading() as reading:
                rows = reading.execute(select(*(table.c[name] for name in names))).mappings().all()
            for row in rows:
                connection.execute(table.insert().values(row))


def test_a_ledger_that_knew_no_units_is_brought_up_to_date_and_counts_by_record(url, tmp_path):
    before = contents(as_of("0004", url, tmp_path))
    with dying_at("ALTER TABLE runs"), pytest.raises(KeyboardInterrupt):
        Ledger(url)
    assert contents(url) == before
    ledger = Ledger(url)
    assert differences(ledger) == []
    assert contents(url)["runs"] == [f"{row[:-1]}, 'record')" for row in before["runs"]]
    with pytest.raises(LedgerError, match=r"unit of privacy 'record', and this run's is 'patient \(at most 8 rows\)'"):
        ledger.open_run("three", "digits", "2 parts", Unit("patient", 8))
    assert ledger.open_run("three", "digits", "2 parts") == 2
    assert verify_ledger(ledger).head.number == 13
    ledger.close()


def test_eight_processes_that_open_a_new_ledger_at_once_all_can_use_it(url):
    def use(number):
        ledger = Ledger(url)
        ledger.bind_keys({f"client-{number}": str(number)})
        ledger.close()

    assert at_once(*(lambda number=number: use(number) for number in range(8))) == [0] * 8
    ledger = Ledger(url)
    assert len(verify_ledger(ledger).replay.keys) == len(journal_of(ledger)) == 8
    ledger.close()


@pytest.mark.exhaustive
def test_eight_processes_that_open_an_old_ledger_at_once_bring_it_up_to_date_once(first):
    assert at_once(*[lambda: Ledger(first).close()] * 8) == [0] * 8
    ledger = Ledger(first)
    assert len(verify_ledger(ledger).replay.charges) == len(CHARGES)
    ledger.close()


@pytest.mark.exhaustive
def test_eight_threads_that_make_eight_ledgers_do_not_get_into_each_others_way(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        for ledger in pool.map(lambda number: fill(f"sqlite:///{tmp_path / f'{number}.db'}"), range(8)):
            assert verify_ledger(ledger).head.number == 12
            ledger.close()
