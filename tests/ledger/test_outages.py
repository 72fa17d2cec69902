"""A database that is locked, full, dead or cut off costs time alone: what was acknowledged is there, once."""

import os
import resource
import signal
import sqlite3
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from fedprivacy.ledger import ChargeState, Ledger, LedgerError
from fedprivacy.ledger.export import import_ledger, write_export
from fedprivacy.ledger.journal import SignedHead, sign_head
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from tests.ledger.acts import (
    ALLOWANCE,
    ASKED,
    EVENT,
    KEY,
    QUESTION,
    answers_of,
    at_first_trouble,
    at_most,
    copied,
    cut_off,
    journal_of,
    unlimited,
)
from tests.postgres import server_user
from tests.processes import in_child

DATASETS = [f"d{number}" for number in range(20)]


def opened(url, patience=60.0):
    ledger = Ledger(url, patience)
    ledger.open_budgets(dict.fromkeys(DATASETS, ALLOWANCE))
    return ledger


def steps(ledger):
    """Steps that each dataset has spent."""
    return {dataset: sum(account.history.values()) for dataset, account in ledger.accounts(DATASETS).items()}


@pytest.fixture
def url(transactional_url):
    return transactional_url


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@contextmanager
def held(url):
    """Meanwhile, somebody else has the ledger."""
    other, begun, over = Ledger(url), threading.Event(), threading.Event()

    def hold(*_):
        begun.set()
        over.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(other.database.write, hold)
        try:
            assert begun.wait(60)
            yield
        finally:
            over.set()
    other.close()


def test_a_reservation_waits_for_whoever_has_the_ledger(url):
    ledger = opened(url)
    with ThreadPoolExecutor(1) as pool:
        with held(url):
            granted = pool.submit(ledger.reserve, Attempt("run", 1), EVENT, {"d0": 5}, unlimited)
            assert not wait([granted], 0.2).done
        assert granted.result() == {"d0": 5}
    assert steps(ledger) == {"d0": 5}
    ledger.close()


def test_a_ledger_that_is_locked_for_longer_than_patience_charges_nothing(url):
    opened(url).close()
    ledger = opened(url, patience=0.2)
    with held(url):
        with pytest.raises(LedgerError, match=r"cannot be used: .*lock.*What was charged before stays charged"):
            ledger.reserve(Attempt("run", 1), EVENT, {"d0": 5}, unlimited)
        assert ledger.accounts(["d0"]) == {}  # a reader does not wait
    assert ledger.reserve(Attempt("run", 1), EVENT, {"d0": 5}, unlimited) == {"d0": 5}
    assert verify_ledger(ledger).head.number == 2
    ledger.close()


def test_a_second_charge_is_refused_though_its_first_try_was_locked_out(sqlite_url):
    """Only a try that came to its commit may have been written: any other is no reason to hand steps out again."""
    ledger, tried = opened(sqlite_url), []
    ledger.reserve(Attempt("run", 1), EVENT, {"d0": 5}, unlimited)

    def lock_out_once(connection):
        if not tried:
            tried.append(connection)
            raise OperationalError("BEGIN", {}, locked_out())

    event.listen(Engine, "begin", lock_out_once)
    try:
        with pytest.raises(LedgerError, match="charged before"):
            ledger.reserve(Attempt("run", 1), EVENT, {"d0": 5}, unlimited)
    finally:
        event.remove(Engine, "begin", lock_out_once)
    assert tried
    ledger.close()


def locked_out():
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


def charge_until_refused(url, acknowledged):
    """Charge every dataset round by round, and write down each round that was acknowledged, until one is not."""
    ledger = Ledger(url, patience=0.2)
    for round in range(1, 1000):
        granted = ledger.reserve(Attempt("run", round), EVENT, dict.fromkeys(DATASETS, 1), unlimited)
        assert granted == dict.fromkeys(DATASETS, 1)
        acknowledged.write_text(str(round))


def limit_files_to(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("room", [1_000, 150_000, 400_000])
def test_a_full_disk_loses_nothing_that_was_acknowledged(sqlite_url, tmp_path, room):
    opened(sqlite_url).close()
    acknowledged = tmp_path / "acknowledged"
    acknowledged.write_text("0")

    def act():
        limit_files_to(room)
        with pytest.raises(LedgerError, match=r"cannot be used: (disk I/O error|database or disk is full)"):
            charge_until_refused(sqlite_url, acknowledged)

    assert in_child(act) == 0
    rounds = int(acknowledged.read_text())
    assert (rounds > 0) == (room > 1_000)
    ledger = Ledger(sqlite_url)
    assert verify_ledger(ledger).head.number == rounds + 1
    assert steps(ledger) == (dict.fromkeys(DATASETS, rounds) if rounds else {})
    assert ledger.reserve(Attempt("run", rounds + 1), EVENT, {"d0": 1}, unlimited) == {"d0": 1}
    ledger.close()


def test_a_full_disk_is_waited_for(sqlite_url):
    opened(sqlite_url).close()

    def act():
        ledger = Ledger(sqlite_url)
        limit_files_to(1_000)
        with at_first_trouble(lambda: limit_files_to(resource.RLIM_INFINITY)):
            for round in range(1, 20):
                ledger.reserve(Attempt("run", round), EVENT, dict.fromkeys(DATASETS, 1), unlimited)

    assert in_child(act) == 0
    ledger = Ledger(sqlite_url)
    assert steps(ledger) == dict.fromkeys(DATASETS, 19)
    verify_ledger(ledger)
    ledger.close()


def test_a_file_that_may_not_be_written_is_named_and_left_alone():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # not pytest's, which nobody else may enter
        file = Path(folder) / "ledger.db"
        opened(f"sqlite:///{file}").close()
        file.chmod(0o444)
        Path(folder).chmod(0o555)
        before = file.read_bytes()

        def act():
            if user := server_user():
                os.setuid(user.pw_uid)
            with pytest.raises(LedgerError, match=r"ledger\.db cannot be used: (attempt to write|unable to open)"):
                Ledger(f"sqlite:///{file}")

        assert in_child(act) == 0
        assert file.read_bytes() == before
        Path(folder).chmod(0o755)


@pytest.mark.exhaustive
def test_postgresql_may_die_again_and_again(postgres, postgres_url):
    ledger, reached = opened(postgres_url), threading.Semaphore(0)

    def charge():
        told = []
        for round in range(1, 41):
            told.append(ledger.reserve(Attempt("run", round), EVENT, dict.fromkeys(DATASETS, 2), at_most(80)))
            ledger.settle(Attempt("run", round), DATASETS[:5], ChargeState.COMMITTED)
            ledger.settle(Attempt("run", round), DATASETS[5:8], ChargeState.VOID)
            reached.release()
        return told

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(charge)
        for _ in range(3):
            for _ in range(8):
                assert reached.acquire(timeout=60)
            postgres.kill()
            postgres.start()
        told = running.result()
    assert told == [dict.fromkeys(DATASETS, 2)] * 40
    charged = DATASETS[:5] + DATASETS[8:]
    assert steps(ledger) == dict.fromkeys(charged, 80)
    assert len(verify_ledger(ledger).replay.charges) == 40 * len(DATASETS)
    ledger.close()


def test_whoever_reads_waits_for_a_server_that_starts_again(postgres, postgres_url):
    ledger = opened(postgres_url)
    ledger.reserve(Attempt("run", 1), EVENT, {"d0": 5}, unlimited)
    postgres.kill()
    with at_first_trouble(postgres.start):
        assert steps(ledger) == {"d0": 5}
    ledger.close()


@pytest.mark.exhaustive
def test_a_server_that_is_down_is_named_at_once(postgres, postgres_url):
    opened(postgres_url).close()
    postgres.stop()
    with pytest.raises(LedgerError, match=r"postgres@127.0.0.1:\d+/test_\d+ cannot be used: .*refused"):
        Ledger(postgres_url)


ACTS = {
    "open_run": lambda ledger: ledger.open_run("one", "digits", "2 parts"),
    "bind_keys": lambda ledger: ledger.bind_keys({"hospital-0": "aa", "hospital-1": "bb"}),
    "rebind_key": lambda ledger: ledger.rebind_key("known", "cc"),
    "open_budgets": lambda ledger: ledger.open_budgets({"new": ALLOWANCE}),
    "set_budget": lambda ledger: ledger.set_budget("d0", PrivacyBudget(1.0, 1e-5), None, "why"),
    "reserve": lambda ledger: ledger.reserve(Attempt("run", 2), EVENT, {"d0": 7, "d1": 7, "d2": 7}, at_most(8)),
    "settle": lambda ledger: ledger.settle(Attempt("run", 1), ["d0"], ChargeState.VOID),
    "late receipt": lambda ledger: ledger.settle(Attempt("run", 1), ["d2"], ChargeState.COMMITTED),
    "reconcile": lambda ledger: ledger.reconcile("d0", {("run", EVENT): 9}),
    "keep_answers": lambda ledger: ledger.keep_answers(ASKED, answers_of("x", "y")),
    "sign": lambda ledger: sign_head(ledger.database, KEY),
}


def begun(url):
    ledger = opened(url)
    ledger.bind_keys({"known": "dd"})
    ledger.reserve(Attempt("run", 1), EVENT, {"d0": 5, "d1": 8, "d2": 4}, unlimited)
    ledger.settle(Attempt("run", 1), ["d2"], ChargeState.VOID)
    ledger.open_budgets({"x": ALLOWANCE, "y": ALLOWANCE})
    ledger.reserve(ASKED, QUESTION, {"x": 1, "y": 1}, unlimited)
    ledger.settle(ASKED, ["x", "y"], ChargeState.COMMITTED)
    return ledger


def state_of(ledger):
    """The state that a ledger adds up to, without times."""
    replay = verify_ledger(ledger).replay
    charges, answers = (
        {key: each._replace(entry=0) for key, each in entered.items()} for entered in (replay.charges, replay.answers)
    )
    return replay.runs, replay.keys, replay.budgets, charges, answers


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Each act's answer, and the ledger's state after it, where nothing happens."""
    found = {}
    for name, act in ACTS.items():
        ledger = copied(begun, f"sqlite:///{tmp_path_factory.mktemp('undisturbed') / 'ledger.db'}")
        found[name] = act(ledger), state_of(ledger)
        ledger.close()
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("committed", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("name", ACTS)
def test_an_act_that_was_cut_off_at_its_commit_is_done_once(url, undisturbed, name, committed):
    ledger, (answer, state) = copied(begun, url), undisturbed[name]
    with cut_off(ledger, committed=committed) as broken:
        answer_again = ACTS[name](ledger)
    assert broken
    if not isinstance(answer, SignedHead) and not (name == "reconcile" and committed):  # says what the last try did
        assert answer_again == answer
    assert state_of(ledger) == state
    ledger.close()


def test_an_import_that_was_cut_off_at_its_commit_is_done_once(url, tmp_path):
    source, file = begun(f"sqlite:///{tmp_path / 'source.db'}"), tmp_path / "export.jsonl"
    with file.open("w") as out, source.database.reading() as connection:
        write_export(connection, out)
    ledger = Ledger(url)
    with cut_off(ledger, committed=True) as broken:
        import_ledger(file, ledger)
    assert broken
    assert journal_of(ledger) == journal_of(source)
    with pytest.raises(LedgerError, match="has entries already"):
        import_ledger(file, ledger)
    ledger.close()
    source.close()
