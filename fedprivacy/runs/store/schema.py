"""Tables of the run store (SQLAlchemy Core), in the ledger's database and under its migrations.

A round of ten thousand clients is one row, one row for every 256 clients' epsilons, and the clients' present state:
what grows with clients times rounds is eight bytes each.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from fedprivacy.ledger.schema import metadata

CLIENTS_PER_PART = 256
"""Epsilons in one row of `recorded_epsilons`: two kilobytes, so that a row fits on a page of the database."""


def _of_run(*, primary_key: bool = True) -> Column[str]:
    return Column("run_id", String, ForeignKey("recorded_runs.run_id"), primary_key=primary_key, nullable=False)


def _number(name: str, comment: str = "") -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False, comment=comment or None)


recorded_runs = Table(
    "recorded_runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("name", String, nullable=False, comment="for people: the last part of the run's folder"),
    Column("settings", Text, nullable=False, comment="JSON, by hyphenated key"),
    Column("noise_multiplier", Float, nullable=False),
    Column("relation", String, nullable=False),
    Column("metric", String, nullable=False, comment="the one that is shown first"),
    Column("status", String, nullable=False, comment="see RunStatus"),
    Column("stage", String, nullable=False, comment="what it is doing; empty: nothing any more"),
    Column("stage_round", Integer, nullable=False),
    Column("stage_clients", Integer, nullable=False, comment="how many were asked"),
    Column("started", Float, nullable=False, comment="seconds since 1970, UTC"),
    Column("updated", Float, nullable=False, comment="last sign of life, the same"),
    Column("changes", Integer, nullable=False, comment="grows with every change of the run or its rounds"),
)

recorded_rounds = Table(
    "recorded_rounds",
    metadata,
    _of_run(),
    _number("round", "0: the state before the first"),
    Column("at", Float, nullable=False, comment="when it was recorded, seconds since 1970, UTC"),
    Column("metrics", Text, nullable=False, comment="JSON; null: not finite"),
    Column("epsilons", LargeBinary, nullable=False, comment="quantiles over clients: five float64, little-endian"),
    Column("clients", Integer, nullable=False),
    Column("participants", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("exhausted", Integer, nullable=False),
    Column("unreconciled", Integer, nullable=False),
)

recorded_epsilons = Table(
    "recorded_epsilons",
    metadata,
    _of_run(),
    _number("part", "clients 256 part to 256 part + 255"),
    _number("round"),
    Column(
        "epsilons", LargeBinary, nullable=False, comment="after the round, float64, little-endian; infinite: no bound"
    ),
)

recorded_clients = Table(
    "recorded_clients",
    metadata,
    _of_run(),
    _number("number", "in the order of enrolment, from 0"),
    Column("client_id", String, nullable=False),
    Column("epsilon", Float, nullable=True, comment="null: no bound"),
    Column("delta", Float, nullable=False),
    Column("budget", Float, nullable=True, comment="its epsilon; null: none"),
    Column("share", Float, nullable=True, comment="epsilon over budget; null: no budget"),
    Column("rounds", Integer, nullable=False, comment="charged, over all runs"),
    Column("steps", Integer, nullable=False, comment="charged, over all runs"),
    Column("steps_left", Integer, nullable=False, comment="of this run's, that the budget still allows"),
    Column("sampling_rate", Float, nullable=False),
    Column("averaged", Integer, nullable=False, comment="rounds of this run whose average holds its update"),
    Column("failed", Integer, nullable=False, comment="rounds of this run that asked for an update and did not use it"),
    Column("exhausted_in", Integer, nullable=True, comment="the first round after which no step was left"),
    Column("state", String, nullable=False, comment="see ClientState"),
    Column("reason", String, nullable=True, comment="why its last update was not used"),
    UniqueConstraint("run_id", "client_id", name="one_number_per_client"),
)

recorded_failures = Table(
    "recorded_failures",
    metadata,
    _of_run(),
    _number("round"),
    Column("client_id", String, primary_key=True),
    Column("reason", String, nullable=False),
)

audits = Table(
    "audits",
    metadata,
    Column("audit_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _of_run(primary_key=False),
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
