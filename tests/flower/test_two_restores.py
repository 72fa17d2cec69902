"""Guard and ledger put back from older copies, one after the other, with a run after each: nothing is forgotten."""

import itertools
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fedprivacy.flower import RoundFailedError
from fedprivacy.flower.client.node import GUARD
from fedprivacy.flower.server.accounts import BudgetSpentError
from fedprivacy.flower.server.nodes import TooFewClientsError
from fedprivacy.guard import BudgetExhaustedError
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.values.attempt import Attempt
from tests.flower.deployment import DeployedGrid, deployed_plan, start
from tests.flower.runs import history_of

CLIENT = "hospital-0"
GUARDS = "guard", "guard-and-sealed"
BOOKS = *GUARDS, "ledger"


class Books:
    """A server and a hospital that trains a step in each run; both books, and how often the hospital has trained."""

    def __init__(self, folder):
        self.plan = deployed_plan(folder, clients=1, rounds=1, local_steps=1, noise_multiplier=2.0, epsilon=60.0)
        self.grid, self._folder, self._runs, self.trained = DeployedGrid(self.plan, folder), folder, 0, 0

    @property
    def ledger(self):
        return Path(self.plan.config.ledger.removeprefix("sqlite:///"))

    def run(self, plan=None, runs=None):
        """Run once; `runs`: the folder of runs in which it leaves its own, as a deployed server does."""
        self._runs, plan = self._runs + 1, plan or self.plan
        run_id, folder = f"run-{self._runs}", runs and runs / f"{self._runs}"
        if folder:
            RunWriter(folder, plan, run_id=run_id).close()
        start(plan, self.grid, run_id=run_id, checkpoints=folder)
        self.trained += 1
        return folder

    def steps(self):
        """Steps that guard and ledger hold."""
        guard = self.grid.guard(self.plan, CLIENT).history()
        return sum(guard.values()), sum(history_of(self.plan.config.ledger, CLIENT).values())

    def copy(self, book, name):
        """Copy a book; return what puts the copy back."""
        kept = self._folder / "copies" / name
        kept.mkdir(parents=True)
        if book == "ledger":
            _copy(self.ledger, kept / "ledger.db")
            return lambda: _copy(kept / "ledger.db", self.ledger)
        own = self._folder / CLIENT
        whole = book == "guard-and-sealed"
        shutil.copytree(own, kept / CLIENT, ignore=lambda *_: [] if whole else _sealed(own))

        def put_back():
            if whole:
                shutil.rmtree(own)
            shutil.copytree(kept / CLIENT, own, dirs_exist_ok=True)

        return put_back


def _sealed(own):
    return [path.name for path in own.glob(f"{GUARD}.*")]


def _copy(database, to):
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


@pytest.fixture
def books(tmp_path):
    return Books(tmp_path)


PAIRS = [
    pytest.param(*pair, id="-then-".join(pair), marks=[] if pair == (GUARDS[1], "ledger") else pytest.mark.exhaustive)
    for pair in itertools.product(BOOKS, BOOKS)
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_restore_after_each_other_loses_no_step(books, first, second):
    """Both copies are from before the same runs; a guard without its sealed updates is refused."""
    books.run()
    copies = [books.copy(book, str(number)) for number, book in enumerate((first, second))]
    books.run()
    for book, put_back in zip((first, second), copies, strict=True):
        newest = books.copy(book, f"newest of {book} {books.trained}")
        put_back()
        if book == "guard":
            with pytest.raises((RoundFailedError, TooFewClientsError)):
                books.run(replace(books.plan, config=replace(books.plan.config, node_timeout=0.1)))
            newest()
        books.run()
        guard, ledger = books.steps()
        assert guard >= books.trained and ledger >= books.trained
        assert guard == ledger
    verify_ledger(Ledger(books.plan.config.ledger))
    books.run()
    assert books.steps() == (books.trained, books.trained)


# --- a ledger that is behind what runs have signed of it ---


def _gone(books, _):
    for left in books.ledger.parent.glob("ledger.db*"):
        left.unlink()


def _restored(_, put_back):
    put_back()


def _moved(books, put_back):
    """Under another name the ledger still knows the runs that charged it."""
    put_back()
    moved = books.ledger.with_name("moved.db")
    books.ledger.rename(moved)
    books.plan = replace(books.plan, config=replace(books.plan.config, ledger=f"sqlite:///{moved}"))


def _rewritten(books, _):
    with sqlite3.connect(books.ledger) as connection:
        connection.executescript(
            "DROP TRIGGER journal_no_update; DROP TRIGGER checkpoints_no_delete; DELETE FROM checkpoints;"
            "UPDATE journal SET hash = iif(hash LIKE '0%', '1', '0') || substr(hash, 2);"
        )


@pytest.mark.parametrize(
    "spoil", [_restored, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (_gone, _moved, _rewritten))]
)
def test_no_run_starts_on_a_ledger_that_lacks_what_a_run_beside_it_signed(books, tmp_path, spoil):
    runs = tmp_path / "runs"
    books.run(runs=runs)

    def first_round(record):
        if record.round == 1:
            put_backs.append(books.copy("ledger", "in the second run"))

    put_backs = []
    books.plan = replace(books.plan, config=replace(books.plan.config, rounds=2))
    RunWriter(runs / "second", books.plan, run_id="second").close()
    start(books.plan, books.grid, run_id="second", checkpoints=runs / "second", observers=[first_round])
    spoil(books, put_backs[0])
    before = books.grid.guard(books.plan, CLIENT).history()
    entries = _entries(books.ledger)
    with pytest.raises(LedgerError, match=r"does not hold entry \d+ as .*older copy .*Put back the ledger"):
        books.run(runs=runs)
    assert books.grid.guard(books.plan, CLIENT).history() == before
    assert _entries(books.ledger) == entries


def _entries(ledger):
    if not ledger.exists():
        return 0
    with closing(sqlite3.connect(ledger)) as connection:
        return connection.execute("SELECT count(*) FROM journal").fetchone()[0]


# --- two servers, each with a ledger of its own, and one guard ---


@pytest.fixture
def other(books):
    """Another server's plan; its ledger begins with what the guard holds."""
    return replace(books.plan, config=replace(books.plan.config, ledger=f"sqlite:///{books.ledger.parent}/other.db"))


@pytest.mark.exhaustive
def test_a_correction_from_one_ledger_reaches_the_other_once(books, other):
    """The guard forgets runs on one ledger, is raised by it, and states them to a ledger that knows part of them."""
    put_back = books.copy("guard-and-sealed", "old")
    books.run()
    books.run(other)  # which is told of the first run by its name
    books.run()
    put_back()
    books.run()
    for _ in range(2):
        books.run(other)
        books.run()
        ledgers = [sum(history_of(plan.config.ledger, CLIENT).values()) for plan in (books.plan, other)]
        guard, _ = books.steps()
        assert guard == ledgers[0] == books.trained and ledgers[1] == books.trained - 1


def test_a_server_that_states_too_much_costs_the_client_its_budget_and_is_counted_once(books, other, tmp_path):
    """Its lies reach the other ledger as the guard counts them, once, and stop there."""
    books.run()
    guard = books.grid.guard(books.plan, CLIENT)
    event = books.plan.event()
    lies = {event: 100_000}
    with pytest.raises(BudgetExhaustedError):
        guard.charge(Attempt("lies", 1), event, 1, elsewhere=lies)
    held = guard.history()
    assert held == {event: 99_999}
    with pytest.raises(BudgetSpentError):
        books.run()
    for plan in (books.plan, other):
        with suppress(BudgetSpentError):
            books.run(plan)
        assert history_of(plan.config.ledger, CLIENT) == held
    assert guard.history() == held
