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
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from tests.ledger.acts import (
    ALLOWANCE,
    EVENT,
    at_first_trouble,
    at_most,
    copied,
    cut_off,
    fill_and_ask,
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
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise OperationalError("BEGIN", {}, busy)

    event.listen(Engine, "begin", lock_out_once)
    try:
        with pytest.raises(LedgerError, match="charged before"):
            ledger.reserve(Attempt("run", 1), EVENT, {"d0": 5}, unlimited)
    finally:
        event.remove(Engine, "begin", lock_out_once)
    assert tried
    ledger.close()


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


@pytest.mark.parametrize("room", [1_000, 150_000])
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
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # not pytest's, which nobody else may enter
        (folder := Path(name)).chmod(0o755)
        opened(f"sqlite:///{folder / 'ledger.db'}").close()
        before = (folder / "ledger.db").read_bytes()

        def act():
            if user := server_user():
                os.setuid(user.pw_uid)
            else:
                folder.chmod(0o555)
                (folder / "ledger.db").chmod(0o444)
            with pytest.raises(LedgerError, match=r"ledger\.db cannot be used: (attempt to write|unable to open)"):
                opened(f"sqlite:///{folder / 'ledger.db'}")

        assert in_child(act) == 0
        assert (folder / "ledger.db").read_bytes() == before
        folder.chmod(0o755)


def test_a_charge_and_its_settlement_that_were_cut_off_at_their_commit_are_made_once(url):
    """`test_interleavings` cuts off every act, on one of both databases."""
    ledger = opened(url)
    for round, committed in enumerate((True, False), start=1):
        with cut_off(ledger, committed=committed) as broken:
            granted = ledger.reserve(Attempt("run", round), EVENT, {"d0": 3, "d1": 5}, at_most(8))
        assert broken and granted == {"d0": 3, "d1": {1: 5, 2: 3}[round]}
        with cut_off(ledger, committed=committed) as broken:
            ledger.settle(Attempt("run", round), ["d0"], ChargeState.VOID)
        assert broken
    assert steps(ledger) == {"d1": 8}
    verify_ledger(ledger)
    ledger.close()


def test_an_import_that_was_cut_off_at_its_commit_is_done_once(url, tmp_path):
    source, file = copied(fill_and_ask, f"sqlite:///{tmp_path / 'source.db'}"), tmp_path / "export.jsonl"
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
