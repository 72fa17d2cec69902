"""Guard and ledger put back from older copies, one after the other, with a run after each: nothing is forgotten."""

import itertools
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from fedprivacy.flower import RoundFailedError
from fedprivacy.flower.client.node import GUARD
from fedprivacy.flower.server.nodes import TooFewClientsError
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from tests.flower.deployment import DeployedGrid, deployed_plan, start
from tests.flower.runs import history_of

CLIENT = "hospital-0"
GUARDS = "guard", "guard-and-sealed"
BOOKS = *GUARDS, "ledger"


class Books:
    """A server and a hospital that trains a step in each run; both books, and the number of times that it trained."""

    def __init__(self, folder):
        self.plan = deployed_plan(folder, clients=1, rounds=1, local_steps=1, noise_multiplier=2.0, epsilon=60.0)
        self.grid, self._folder, self._runs, self.trained = DeployedGrid(self.plan, folder), folder, 0, 0

    def run(self, **settings):
        """Run once, perhaps with other settings."""
        self._runs += 1
        plan = replace(self.plan, config=replace(self.plan.config, **settings))
        start(plan, self.grid, run_id=f"run-{self._runs}")
        self.trained += 1

    def steps(self):
        """Steps that guard and ledger hold."""
        guard = self.grid.guard(self.plan, CLIENT).history()
        return sum(guard.values()), sum(history_of(self.plan.config.ledger, CLIENT).values())

    def copy(self, book, name):
        """Copy a book; return what puts the copy back."""
        kept = self._folder / "copies" / name
        kept.mkdir(parents=True)
        if book == "ledger":
            ledger = self._folder / "ledger.db"
            _copy(ledger, kept / "ledger.db")
            return lambda: _copy(kept / "ledger.db", ledger)
        own = self._folder / CLIENT
        whole = book == "guard-and-sealed"
        sealed = [path.name for path in own.glob(f"{GUARD}.*")]
        shutil.copytree(own, kept / CLIENT, ignore=lambda *_: [] if whole else sealed)

        def put_back():
            if whole:
                shutil.rmtree(own)
            shutil.copytree(kept / CLIENT, own, dirs_exist_ok=True)

        return put_back


def _copy(database, to):
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


PAIRS = [
    pytest.param(*pair, id="-then-".join(pair), marks=[] if pair == (GUARDS[1], "ledger") else pytest.mark.exhaustive)
    for pair in itertools.product(BOOKS, BOOKS)
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_restore_after_each_other_loses_no_step(tmp_path, first, second):
    """Both copies are from before the same runs; a guard without its sealed updates is refused."""
    books = Books(tmp_path)
    books.run()
    copies = [books.copy(book, str(number)) for number, book in enumerate((first, second))]
    books.run()
    for book, put_back in zip((first, second), copies, strict=True):
        newest = books.copy(book, f"newest of {book} {books.trained}")
        put_back()
        if book == "guard":
            with pytest.raises((RoundFailedError, TooFewClientsError)):
                books.run(node_timeout=0.1)
            newest()
        books.run()
        guard, ledger = books.steps()
        assert guard >= books.trained and ledger >= books.trained
        assert guard == ledger
    verify_ledger(Ledger(books.plan.config.ledger))
    books.run()
    assert books.steps() == (books.trained, books.trained)
