"""Tables in the database of a ledger (SQLAlchemy Core): the ledger's, and those of the run store.

The journal is the ledger: every act is one entry, appended, chained to the entry before, and never changed. All other
tables hold the state after all entries, in a form for queries; `fedprivacy ledger verify` replays the journal and
compares. The journal holds digests of answers to questions, and the table `answers` the totals behind the digests.

The run store, in the tables `recorded_...` and `audits`, holds finished rounds, for monitoring. It is no part of the
ledger, and proves nothing. A round of ten thousand clients is one row, one row for every 256 clients' epsilons, and the
clients' present state: what grows with clients times rounds is eight bytes each.
"""

from __future__ import annotations

import enum

from sqlalchemy import (
    Column,
    Connection,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Table,
    UniqueConstraint,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.types import BigInteger, Boolean, DateTime, Enum, Float, Integer, LargeBinary, String, Text

from fedprivacy.ledger.errors import LedgerError
from fedprivacy.values.events import NeighbouringRelation

REVISION = "0007"
"""Revision of these tables, which every ledger holds. A change of the tables is another one; there is no other reader.
"""


class ChargeState(enum.StrEnum):
    """State of a charge. Only a VOID charge costs nothing.

    `RESERVED`: granted, without a receipt so far; it stays so if no reply ever comes. `COMMITTED`: the client's receipt
    matched the grant. `VOID`: the client reported that it refused before it touched a record.
    """

    RESERVED = "reserved"
    COMMITTED = "committed"
    VOID = "void"


metadata = MetaData()


def _stored_by_value(kind: type[enum.StrEnum]) -> Enum:
    return Enum(kind, native_enum=False, validate_strings=True, values_callable=lambda kind: [m.value for m in kind])


journal = Table(
    "journal",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False, comment="1, 2, 3, ... without a gap"),
    Column("entry", Text, nullable=False, comment="canonical JSON"),
    Column("hash", String(64), nullable=False, comment="SHA-256 of the hash before and the entry, hexadecimal"),
)

heads = Table(
    "checkpoints",
    metadata,
    Column("number", Integer, ForeignKey("journal.number"), primary_key=True, comment="the last entry that it covers"),
    Column("hash", String(64), nullable=False, comment="of that entry"),
    Column("at", String, nullable=False, comment="when, ISO 8601"),
    Column("public_key", String(64), primary_key=True, comment="Ed25519, hexadecimal"),
    Column("signature", String(128), nullable=False, comment="Ed25519, hexadecimal"),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("entry", Integer, ForeignKey("journal.number"), nullable=False, comment="of the journal"),
    Column("dataset", String, nullable=False),
    Column("partition", String, nullable=False),
    Column("unit", String, nullable=False, comment="of privacy"),
)

keys = Table(
    "keys",
    metadata,
    Column("client_id", String, primary_key=True),
    Column("key_hash", String, nullable=False, unique=True, comment="SHA-256 of the public key, hexadecimal"),
)

budgets = Table(
    "budgets",
    metadata,
    Column("dataset_id", String, primary_key=True),
    Column("epsilon", Float, nullable=True, comment="null: measured, never exhausted"),
    Column("delta", Float, nullable=False),
    Column("filter", String, nullable=False),
    Column("expires", DateTime(timezone=True), nullable=True, comment="nothing is granted from then on; null: never"),
    Column("deliberate", Boolean, nullable=False, comment="set by an explicit act, not by the first run"),
)

charges = Table(
    "charges",
    metadata,
    Column("charge_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("entry", Integer, ForeignKey("journal.number"), nullable=False, comment="of the journal"),
    Column("dataset_id", String, ForeignKey("budgets.dataset_id"), nullable=False),
    Column("run_id", String, nullable=False, comment="empty: of a run that the client cannot name"),
    Column("round", Integer, nullable=False, comment="0: a client's own figure was higher"),
    Column("attempt", Integer, nullable=False),
    Column("sampling_rate", Float, nullable=False),
    Column("noise_multiplier", Float, nullable=False),
    Column("relation", _stored_by_value(NeighbouringRelation), nullable=False),
    Column("view", String, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("state", _stored_by_value(ChargeState), nullable=False),
    UniqueConstraint("dataset_id", "run_id", "round", "attempt", name="one_charge_per_attempt"),
    Index("charges_by_round", "run_id", "round"),
)

balances = Table(
    "balances",
    metadata,
    Column("dataset_id", String, ForeignKey("budgets.dataset_id"), primary_key=True),
    Column("sampling_rate", Float, primary_key=True),
    Column("noise_multiplier", Float, primary_key=True),
    Column("relation", _stored_by_value(NeighbouringRelation), primary_key=True),
    Column("steps", BigInteger, nullable=False, comment="of all charges that are not void"),
    Column("charges", Integer, nullable=False, comment="how many"),
)
"""Sums of charges, updated in the transaction that changes the charges, so that a round need not add up earlier ones.
"""

_QUESTION = ("run_id", "round", "attempt", "number")
_CHARGE = ("dataset_id", "run_id", "round", "attempt")


def _question_key() -> list[Column[int] | Column[str]]:
    return [
        Column("run_id", String, primary_key=True),
        Column("round", Integer, primary_key=True, autoincrement=False),
        Column("attempt", Integer, primary_key=True, autoincrement=False),
        Column("number", Integer, primary_key=True, autoincrement=False, comment="within what was asked together"),
    ]


questions = Table(
    "questions",
    metadata,
    *_question_key(),
    Column("entry", Integer, ForeignKey("journal.number"), nullable=False, comment="of the journal: its first answer"),
    Column("at", String, nullable=False, comment="when that was, ISO 8601"),
    Column("question", Text, nullable=False, comment="canonical JSON"),
    # A hash: no other index of PostgreSQL holds a text of more than 2,700 bytes.
    Index("questions_by_text", "question", postgresql_using="hash"),
)

answers = Table(
    "answers",
    metadata,
    *_question_key(),
    Column("dataset_id", String, primary_key=True),
    Column("entry", Integer, ForeignKey("journal.number"), nullable=False, comment="of the journal"),
    Column("noise_multiplier", Float, nullable=False, comment="of this question alone"),
    Column("totals", LargeBinary, nullable=False, comment="in lattice steps, int64, little-endian"),
    ForeignKeyConstraint(_QUESTION, [f"questions.{name}" for name in _QUESTION]),
    ForeignKeyConstraint(_CHARGE, [f"charges.{name}" for name in _CHARGE]),
)

audits = Table(
    "audits",
    metadata,
    Column("audit_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("run_id", String, nullable=False),
    Column("at", Float, nullable=False, comment="seconds since 1970, UTC"),
    Column("attack", String, nullable=False),
    Column("client_id", String, nullable=False, comment="empty: the run as a whole"),
    Column("lower", Float, nullable=False, comment="epsilon that the attack proves"),
    Column("confidence", Float, nullable=False),
    Column("upper", Float, nullable=True, comment="epsilon that the accountant guarantees; null: no bound"),
    Column("delta", Float, nullable=False),
    Column("accountant", String, nullable=False),
    Column("view", String, nullable=False),
    Index("audits_by_run", "run_id"),
)
"""Lower bounds that attacks on runs proved: for people, beside the ledger and outside its journal."""

_revision = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), primary_key=True, comment="revision of all tables"),
)
"""Table of one row. Its names are those of Alembic, which made all tables before: such ledgers go on."""


_ROUNDS = "recorded_results"
"""Name of a table that the store of a run's rounds has: see `fedprivacy.runs.records.store`."""


def _forbid_changes(table: Table, connection: Connection, **_: object) -> None:
    """Make a table append-only: the database refuses to change or delete a row; other changes show in the hashes."""
    if connection.dialect.name == "sqlite":
        for act in ("UPDATE", "DELETE"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER {table.name}_no_{act.lower()} BEFORE {act} ON {table.name} "
                f"BEGIN SELECT RAISE(ABORT, 'the {table.name} is append-only'); END"
            )
        return
    connection.exec_driver_sql(
        f"CREATE FUNCTION {table.name}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'the {table.name} is append-only'; END $$"
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER {table.name}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table.name}_is_append_only()"
    )


for _table in (journal, heads, questions, answers):
    event.listen(_table, "after_create", _forbid_changes)


def is_made(connection: Connection, name: str) -> bool:
    """Return whether the tables exist, and not whether anything is in them.

    Raises:
        LedgerError: they have another revision, or some of them exist without one.
    """
    names = set(inspect(connection).get_table_names())
    existing = metadata.tables.keys() & names
    if not existing and _ROUNDS in names:
        raise LedgerError(
            f"ledger {name} is the store of a run's rounds and has no account; name the ledger, which a run of its own "
            "has beside it as ledger.db."
        )
    if not existing:
        return False
    revision = connection.scalar(select(_revision)) if _revision.name in existing else None
    if revision == REVISION:
        return True
    remedy = (
        "update it"
        if revision is not None and revision > REVISION
        else "keep it, for what it counted stands, and use the version that made it"
    )
    raise LedgerError(
        f"ledger {name} has revision {revision or 'none'}, and this version of fedprivacy knows {REVISION} alone; "
        f"{remedy}."
    )


def make_tables(connection: Connection, name: str) -> None:
    """Create all tables, in the caller's transaction, which has exclusive access to the ledger.

    Raises:
        LedgerError: as `is_made` does.
    """
    if not is_made(connection, name):  # else another process was first
        metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(_revision).values(version_num=REVISION))
