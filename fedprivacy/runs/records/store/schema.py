"""Tables of the run store (SQLAlchemy Core), and their rows: a run in its folder, and runs in a ledger's database.

One schema for both, which is no part of the ledger's: nothing is migrated, and a store of another version is refused.
A round of ten thousand clients is one row, one row for every 256 clients' epsilons, and the clients' present state:
what grows with clients times rounds is eight bytes each. A column bears the name of the field that it holds, and
follows from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import astuple, fields
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

from fedprivacy.values.numbers import finite_or_none, plain, read_measured, read_unbounded
from fedprivacy.values.runs import AuditResult, Phase, RoundResult, RunStanding, RunStatus, Stage
from fedprivacy.values.series import EpsilonSpread, RoundPoint, RunFacts
from fedprivacy.values.spent import ClientSpent, ClientStanding, ClientState

Row = dict[str, Any]

CLIENTS_PER_PART = 256
"""Epsilons in one row of `recorded_epsilons`: two kilobytes, so that a row fits on a page of the database."""

EPSILONS = "<f8"
"""Type of packed epsilons: little-endian floats, so that infinity needs no null."""

metadata = MetaData()


def _run_id_column() -> Column[str]:
    return Column("run_id", String, ForeignKey("recorded_runs.run_id"), primary_key=True, nullable=False)


def _number(name: str, comment: str = "") -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False, comment=comment or None)


_TYPES: dict[Any, tuple[type[TypeEngine[Any]], bool]] = {
    int: (Integer, False),
    float: (Float, False),
    str: (String, False),
    int | None: (Integer, True),
    float | None: (Float, True),
    str | None: (String, True),
}
"""Types of columns by those of fields, and whether they may be null."""


def _columns(kind: type[Any], *left_out: str) -> Iterator[Column[Any]]:
    """Make the columns of a value's fields, except those that are left out."""
    types = get_type_hints(kind)
    for each in fields(kind):
        if each.name not in left_out and types[each.name] in _TYPES:
            column_type, nullable = _TYPES[types[each.name]]
            about = each.metadata.get("about") or None
            nullable = nullable or each.metadata.get("unbounded", False)
            yield Column(each.name, column_type, nullable=nullable, comment=about)


recorded_runs = Table(
    "recorded_runs",
    metadata,
    Column("run_id", String, primary_key=True),
    *_columns(RunFacts, "run_id"),
    Column("settings", Text, nullable=False, comment="JSON, by hyphenated key"),
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
    _run_id_column(),
    _number("round", "0: the state before the first"),
    *_columns(RoundPoint, "round"),
    Column("metrics", Text, nullable=False, comment="JSON; null: not finite"),
    Column("epsilons", LargeBinary, nullable=False, comment="quantiles over clients: five float64, little-endian"),
)

recorded_results = Table(
    "recorded_results",
    metadata,
    Column("run_id", String, primary_key=True),
    _number("round", "0: the state before the first"),
    Column("told", Text, nullable=False, comment="JSON: all of the round, in the run's own folder alone"),
)
"""The record itself, written before a round counts as finished. All else is an index of it for pages, written soon."""

recorded_epsilons = Table(
    "recorded_epsilons",
    metadata,
    _run_id_column(),
    _number("part", "clients 256 part to 256 part + 255"),
    _number("round"),
    Column(
        "epsilons", LargeBinary, nullable=False, comment="after the round, float64, little-endian; infinite: no bound"
    ),
)

recorded_clients = Table(
    "recorded_clients",
    metadata,
    _run_id_column(),
    _number("number", "in the order of enrolment, from 0"),
    *_columns(ClientSpent),
    *_columns(ClientStanding, "number", "planned"),
    Column("share", Float, nullable=True, comment="epsilon over budget; null: no budget"),
    Column("state", String, nullable=False, comment="see ClientState"),
    UniqueConstraint("run_id", "client_id", name="one_number_per_client"),
)

recorded_failures = Table(
    "recorded_failures",
    metadata,
    _run_id_column(),
    _number("round"),
    Column("client_id", String, primary_key=True),
    Column("reason", String, nullable=False),
)


def run_row(facts: RunFacts) -> Row:
    """A run that begins."""
    now = time.time()
    began = {"status": RunStatus.RUNNING, "started": now, "updated": now, "changes": 0}
    return plain(facts) | {"settings": json.dumps(dict(facts.settings))} | phase_row(None) | began


def phase_row(phase: Phase | None) -> Row:
    """The phase of a run, as columns of its row."""
    if phase is None:
        return {"stage": "", "stage_round": 0, "stage_clients": 0}
    return {"stage": phase.stage, "stage_round": phase.round, "stage_clients": phase.clients}


def standing_of(row: RowMapping) -> RunStanding:
    """A run; its row is joined with that of its newest round, or with nulls."""
    facts = RunFacts(**_fields(RunFacts, row) | {"settings": json.loads(row["settings"])})
    told = {
        "facts": facts,
        "status": RunStatus(row["status"]),
        "phase": Phase(Stage(row["stage"]), row["stage_round"], row["stage_clients"]) if row["stage"] else None,
        "last": point_of(row) if row["round"] is not None else None,
    }
    return RunStanding(**_fields(RunStanding, row) | told)


def round_row(run_id: str, point: RoundPoint, at: float) -> Row:
    """A finished round."""
    row = plain(point)
    packed = np.array(astuple(point.epsilons), dtype=EPSILONS).tobytes()
    return row | {"run_id": run_id, "at": at, "metrics": json.dumps(row["metrics"]), "epsilons": packed}


def point_of(row: RowMapping) -> RoundPoint:
    """A finished round."""
    spread = EpsilonSpread(*np.frombuffer(row["epsilons"], dtype=EPSILONS).tolist())
    unpacked = {"metrics": read_measured(json.loads(row["metrics"])), "epsilons": spread}
    return RoundPoint(**_fields(RoundPoint, row) | unpacked)


def epsilon_rows(run_id: str, round: int, epsilons: NDArray[np.float64]) -> Iterator[Row]:
    """A round's epsilons, by number of the client, in parts."""
    for part, first in enumerate(range(0, epsilons.size, CLIENTS_PER_PART)):
        some = epsilons[first : first + CLIENTS_PER_PART].astype(EPSILONS, copy=False).tobytes()
        yield {"run_id": run_id, "part": part, "round": round, "epsilons": some}


def failure_rows(run_id: str, result: RoundResult) -> Iterator[Row]:
    """The updates that a round asked for and did not use."""
    for client_id, reason in result.failures.items():
        yield {"run_id": run_id, "round": result.round, "client_id": client_id, "reason": reason}


def client_row(run_id: str, client: ClientStanding) -> Row:
    """A client, as it stands."""
    row = plain(client)
    spent: Row = row.pop("spent")
    del row["unreconciled"], row["planned"]  # the state and the run's settings say so
    return {"run_id": run_id} | spent | row | {"share": finite_or_none(client.spent.share), "state": client.state}


def client_of(row: RowMapping, planned: int) -> ClientStanding:
    """A client of a run of so many planned rounds, as it stands."""
    spent = ClientSpent(**read_unbounded(_fields(ClientSpent, row)))
    told = {"spent": spent, "planned": planned, "unreconciled": row["state"] == ClientState.UNRECONCILED}
    return ClientStanding(**_fields(ClientStanding, row) | told)


def audit_of(row: RowMapping) -> AuditResult:
    return AuditResult(**read_unbounded(_fields(AuditResult, row)))


def _fields(kind: type[Any], row: RowMapping) -> Row:
    """The fields of a value that a row holds, by name."""
    return {field.name: row[field.name] for field in fields(kind) if field.name in row}
