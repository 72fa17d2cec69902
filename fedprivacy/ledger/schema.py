"""Tables of the ledger (SQLAlchemy Core)."""

from __future__ import annotations

import enum

from sqlalchemy import (
    Column,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

from fedprivacy.events import NeighbouringRelation


class ChargeState(enum.StrEnum):
    """What is known of a charge. Only a VOID charge costs nothing.

    `RESERVED`: granted, and no receipt yet; it stays so when no reply ever comes. `COMMITTED`: the client's receipt
    matched the grant. `VOID`: the client said that it refused before it touched a record.
    """

    RESERVED = "reserved"
    COMMITTED = "committed"
    VOID = "void"


metadata = MetaData()


def _stored_by_value(kind: type[enum.StrEnum]) -> Enum:
    return Enum(kind, native_enum=False, validate_strings=True, values_callable=lambda kind: [m.value for m in kind])


runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("dataset", String, nullable=False),
    Column("partition", String, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
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
    Column("created_at", DateTime(timezone=True), nullable=False),
)

charges = Table(
    "charges",
    metadata,
    Column("charge_id", Integer, primary_key=True),
    Column("dataset_id", String, ForeignKey("budgets.dataset_id"), nullable=False),
    Column("run_id", String, nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("sampling_rate", Float, nullable=False),
    Column("noise_multiplier", Float, nullable=False),
    Column("relation", _stored_by_value(NeighbouringRelation), nullable=False),
    Column("view", String, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("state", _stored_by_value(ChargeState), nullable=False),
    Column("charged_at", DateTime(timezone=True), nullable=False),
    UniqueConstraint("dataset_id", "run_id", "round", "attempt", name="one_charge_per_attempt"),
    Index("charges_by_dataset", "dataset_id", "state"),
)

balances = Table(
    "balances",
    metadata,
    Column("dataset_id", String, ForeignKey("budgets.dataset_id"), primary_key=True),
    Column("sampling_rate", Float, primary_key=True),
    Column("noise_multiplier", Float, primary_key=True),
    Column("relation", _stored_by_value(NeighbouringRelation), primary_key=True),
    Column("steps", Integer, nullable=False, comment="of all charges that are not void"),
    Column("charges", Integer, nullable=False, comment="how many"),
)
"""Sums of charges, changed in the transaction that changes the charges: a round must not add up all rounds before."""
