"""A ledger with an entry of every kind, questions on it, and what somebody does who can write to its database."""

import datetime
import io
import json
import logging
import sqlite3
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import Engine, create_engine, event
from sqlalchemy import text as sql

from fedprivacy.ledger import Allowance, Answer, ChargeState, Ledger, database_file
from fedprivacy.ledger.export import verify_export, write_export
from fedprivacy.ledger.journal import FIRST_HASH, canonical, entry_hash, sign_head
from fedprivacy.ledger.replay import BrokenJournalError, Evidence
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.1, 1.0)
OTHER = PoissonSampledGaussian(0.2, 2.0)
QUESTION = PoissonSampledGaussian(1.0, 20.0)
MEAN = canonical({"kind": "mean", "column": "age", "low": 0, "high": 120})
COUNT = canonical({"kind": "count"})
ASKED = Attempt("questions-spring", 1)
LATER = Attempt("questions-autumn", 1)
ALLOWANCE = Allowance(PrivacyBudget(3.0, 1e-5), "fixed-mechanism")
EXPIRES = datetime.datetime(2100, 1, 1, 12, 30, tzinfo=datetime.UTC)
CLIENT_KEY = ec.derive_private_key(7, ec.SECP384R1())
CLIENT_PEM = CLIENT_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\x01")


def unlimited(*_):
    return 10**9


def at_most(quota):
    """Allow a dataset so many steps over all runs, whatever its budget says."""
    return lambda _, history, __: quota - sum(history.values())


def receipt(run_id, round, steps, **more):
    """The receipt that hospital-0 signs for steps of EVENT; the same bytes every time."""
    said = {"run_id": run_id, "round": round, "attempt": 1, "steps": steps, "client_id": "hospital-0", "unit": "record"}
    event = {
        "sampling_rate": EVENT.sampling_rate,
        "noise_multiplier": EVENT.noise_multiplier,
        "relation": EVENT.relation,
    }
    text = json.dumps(said | event | more)
    signed = CLIENT_KEY.sign(f"fedprivacy receipt\n{text}".encode(), ec.ECDSA(SHA384(), deterministic_signing=True))
    return Evidence(text, signed.hex(), CLIENT_PEM.decode())


def fill(url):
    """A ledger with twelve entries, of every kind but answers, all covered by a signed head."""
    ledger = Ledger(url)
    ledger.open_run("one", "digits", "2 parts")
    ledger.bind_keys({"hospital-0": key_hash(CLIENT_PEM)})
    ledger.open_budgets({"a": ALLOWANCE, "b": ALLOWANCE})
    ledger.reserve(Attempt("one", 1), EVENT, {"a": 5, "b": 5}, unlimited)
    ledger.settle(Attempt("one", 1), {"a": receipt("one", 1, 5)}, ChargeState.COMMITTED)
    ledger.settle(Attempt("one", 1), ["b"], ChargeState.VOID)
    ledger.reserve(Attempt("one", 2), OTHER, {"a": 3}, unlimited)
    ledger.reconcile("a", {("one", EVENT): 9})
    ledger.set_budget("b", PrivacyBudget(1.0, 1e-5), EXPIRES, "consent was renewed")
    ledger.rebind_key("hospital-0", "bb")
    ledger.open_run("two", "digits", "2 parts")
    ledger.reserve(Attempt("two", 1, 3), EVENT, {"a": 1, "b": 2}, unlimited)
    sign_head(ledger.database, KEY)
    ledger.close()
    return ledger


@cache
def _made(make):
    """The bytes of a ledger like that."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        make(f"sqlite:///{file}").close()
        return file.read_bytes()


def copied(make, url):
    """Make a ledger at a URL: in a file as a copy, which takes a tenth of the time."""
    if (file := database_file(url)) is None:
        return make(url)
    file.write_bytes(_made(make))
    return Ledger(url)


def answers_of(*datasets, shift=0):
    """Answers of datasets to the mean and the count, asked together with as much noise; each something else."""
    noise, given = QUESTION.noise_multiplier * 2.0**0.5, []
    for dataset in datasets:
        count = 100 * ord(dataset) + shift
        given.append(Answer(dataset, 0, MEAN, noise, (count, -(2**60), 2**60)))
        given.append(Answer(dataset, 1, COUNT, noise, (count,)))
    return given


def ask(ledger, attempt=ASKED, asked="ab", **options):
    """Three entries more: questions to datasets are charged and answered, and the answers are kept."""
    ledger.reserve(attempt, QUESTION, dict.fromkeys(asked, 1), unlimited)
    ledger.settle(attempt, list(asked), ChargeState.COMMITTED)
    ledger.keep_answers(attempt, answers_of(*asked, **options))


def fill_and_ask(url):
    """Six entries more: questions to both datasets, and once more to one of them."""
    ledger = fill(url)
    ask(ledger)
    ask(ledger, LATER, "a", shift=7)
    return ledger


def journal_of(ledger):
    """(number, entry, hash) of every entry, in order."""
    return query(ledger, "SELECT number, entry, hash FROM journal ORDER BY number")


def query(ledger, statement):
    with ledger.database.reading() as connection:
        return [tuple(row) for row in connection.execute(sql(statement))]


def disarm(connection):
    """Take away what guards the tables: the triggers, and the keys between them."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql("SET LOCAL session_replication_role = replica"))
        return
    connection.execute(sql("PRAGMA defer_foreign_keys = ON"))
    for trigger in connection.scalars(sql("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
        connection.execute(sql(f"DROP TRIGGER {trigger}"))


def tamper(url, *statements):
    """Change the database as its superuser does, behind the ledger's back."""
    engine = create_engine(url)
    with engine.begin() as connection:
        disarm(connection)
        for statement, values in (each if isinstance(each, tuple) else (each, {}) for each in statements):
            connection.execute(sql(statement), values)
    engine.dispose()


class Undone(Exception):
    """Nothing stays of what was done."""


def found_when(ledger, *damage, match):
    """Damage the ledger, see that it no longer verifies for that reason, and undo the damage."""

    def work(connection, _):
        disarm(connection)
        for statement in damage:
            connection.execute(sql(statement))
        damaged = SimpleNamespace(database=SimpleNamespace(reading=lambda: nullcontext(connection)))
        with pytest.raises(BrokenJournalError, match=match):
            verify_ledger(damaged)
        raise Undone

    with pytest.raises(Undone):
        ledger.database.write(work)


def rewrite(url, number, old, new):
    """Change an entry's text, and make its hash and every one after it anew."""
    ledger, hash, changes = Ledger(url), FIRST_HASH, []
    for each, text, _ in journal_of(ledger):
        entry = text.replace(old, new) if each == number else text
        hash = entry_hash(hash, entry)
        values = {"number": each, "entry": entry, "hash": hash}
        changes.append(("UPDATE journal SET entry = :entry, hash = :hash WHERE number = :number", values))
    ledger.close()
    tamper(url, *changes)


@contextmanager
def cut_off(ledger, *, committed):
    """Break the connection at the next commit: before it, or after it and before its answer.

    Gives a list that is empty until it broke.
    """
    dialect = ledger.database._engine.dialect
    commit, broken = dialect.do_commit, []

    def commit_and_break(connection):
        if broken:
            return commit(connection)
        broken.append(True)
        if committed:
            commit(connection)
        raise cut(dialect)

    dialect.do_commit = commit_and_break
    try:
        yield broken
    finally:
        dialect.do_commit = commit


def cut(dialect):
    if dialect.name == "postgresql":
        return psycopg.OperationalError("server closed the connection unexpectedly")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


@contextmanager
def at_first_trouble(act):
    """Do something when the ledger first says that it tries again."""
    handler, done = logging.Handler(logging.WARNING), []

    def emit(_):
        if not done:
            done.append(True)
            act()

    handler.emit = emit
    log = logging.getLogger("fedprivacy.ledger")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
    assert done


@contextmanager
def dying_at(statement):
    """Interrupt the process when it comes to a statement."""

    def die(_, __, executed, *___):
        if executed.lstrip().startswith(statement):
            raise KeyboardInterrupt

    event.listen(Engine, "before_cursor_execute", die)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", die)


def exported(ledger):
    """The bytes of an export."""
    out = io.StringIO()
    with ledger.database.reading() as connection:
        write_export(connection, out)
    return out.getvalue().encode()


def problem(content):
    """The error message for an export; the file is one in memory, for there are many."""
    with pytest.raises(BrokenJournalError) as error:
        verify_export(SimpleNamespace(open=lambda _: io.BytesIO(content)))
    return str(error.value)


def undamaged_by(fill):
    """A fixture: a ledger whose damage is undone after each test; the soak repeats it on PostgreSQL."""

    @pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
    def undamaged(request, tmp_path_factory):
        if request.param == "postgresql":
            url = request.getfixturevalue("postgres").new_database()
        else:
            url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
        ledger = fill(url)
        yield ledger
        verify_ledger(ledger)
        ledger.close()

    return undamaged
