"""Rows of the run store, whose tables `fedprivacy.ledger.schema` has. A column bears the name of the field that it
holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import astuple, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import RowMapping

from fedprivacy.values.nulls import finite_or_none, measured, plain, unbounded
from fedprivacy.values.rounds import Phase, RoundResult, Stage
from fedprivacy.values.runs import AuditResult, RunStanding, RunStatus
from fedprivacy.values.series import EpsilonSpread, RoundPoint, RunFacts
from fedprivacy.values.spent import ClientSpent, ClientStanding, ClientState

Row = dict[str, Any]

CLIENTS_PER_PART = 256
"""Epsilons in one row of `recorded_epsilons`: two kilobytes, so that a row fits on a page of the database."""

EPSILONS = "<f8"
"""Type of packed epsilons: little-endian floats, so that infinity needs no null."""


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
    unpacked = {"metrics": measured(json.loads(row["metrics"])), "epsilons": spread}
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
    derived = {"share": finite_or_none(client.spent.share), "state": client.state}
    return {"run_id": run_id, "budget": spent.pop("budget_epsilon")} | spent | row | derived


def client_of(row: RowMapping, planned: int) -> ClientStanding:
    """A client of a run of so many planned rounds, as it stands."""
    spent = ClientSpent(**unbounded(_fields(ClientSpent, row) | {"budget_epsilon": row["budget"]}))
    told = {"spent": spent, "planned": planned, "unreconciled": row["state"] == ClientState.UNRECONCILED}
    return ClientStanding(**_fields(ClientStanding, row) | told)


def audit_row(run_id: str, result: AuditResult) -> Row:
    """An audit's result, as a row."""
    return {"run_id": run_id} | plain(result)


def audit_of(row: RowMapping) -> AuditResult:
    """An audit's result, from its row."""
    return AuditResult(**unbounded(_fields(AuditResult, row)))


def _fields(kind: type[Any], row: RowMapping) -> Row:
    """The fields of a value that a row holds, by name."""
    return {field.name: row[field.name] for field in fields(kind) if field.name in row}
