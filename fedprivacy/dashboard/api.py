"""The API: read-only, versioned, described by OpenAPI."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import WithJsonSchema

from fedprivacy.dashboard import models, presentation
from fedprivacy.dashboard.lookup import NOT_FOUND, ClientName, Runs, TheRun, Words, client_of, one_of
from fedprivacy.ledger import ChargeState
from fedprivacy.runs.records.store import ClientQuery
from fedprivacy.values.columns import CLIENT_COLUMNS
from fedprivacy.values.numbers import finite_or_none
from fedprivacy.values.runs import RunStatus
from fedprivacy.values.series import thinned
from fedprivacy.values.spent import ClientState

ROOT = "/api/v1"

api = APIRouter(tags=["runs"])

Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=10_000_000)]
Number = Annotated[int, Query(ge=0, le=1_000_000_000)]
_SORTED = {column.name: column.sort for column in CLIENT_COLUMNS if column.sort}
SortBy = Annotated[str, one_of(_SORTED, "column"), WithJsonSchema({"type": "string", "enum": list(_SORTED)})]


@api.get("/runs")
def runs(
    catalogue: Runs, search: Words = "", status: RunStatus | None = None, limit: Limit = 50, offset: Offset = 0
) -> models.Runs:
    """List every run, newest first."""
    listing = catalogue.listing()
    wanted = search.casefold()
    found = [
        run
        for run in listing.runs
        if (status is None or run.status is status)
        and any(wanted in text.casefold() for text in (run.facts.name, run.facts.task, run.facts.run_id))
    ]
    page = [presentation.summary(run) for run in found[offset : offset + limit]]
    return models.Runs(total=len(found), runs=page, problems=listing.problems)


@api.get("/runs/{run_id}", responses=NOT_FOUND)
def run(found: TheRun) -> models.RunBody:
    """Get the current state of one run."""
    return presentation.detail(found)


@api.get("/runs/{run_id}/rounds", responses=NOT_FOUND)
def rounds(found: TheRun, after: Number = 0, limit: Limit = 500) -> models.RoundsBody:
    """List finished rounds after a given one, ascending."""
    points = found.points(range(after + 1, min(after + limit, found.finished) + 1))
    told = [presentation.finished_round(found.facts, point) for point in points]
    return models.RoundsBody(total=found.finished, rounds=told)


@api.get("/runs/{run_id}/clients", responses=NOT_FOUND)
def clients(
    found: TheRun,
    *,
    sort: SortBy = "epsilon",
    order: Literal["asc", "desc"] = "desc",
    search: Words = "",
    state: ClientState | None = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> models.Clients:
    """List a page of clients."""
    query = ClientQuery(
        sort=_SORTED[sort],
        descending=order == "desc",
        search=search,
        state=state or "",
        limit=limit,
        offset=offset,
    )
    total, page = found.clients(query)
    return models.Clients(total=total, clients=[presentation.client(found.facts, one) for one in page])


@api.get("/runs/{run_id}/clients/{client_id:path}/rounds", responses=NOT_FOUND)
def client_rounds(found: TheRun, client_id: Annotated[str, Path(max_length=500)]) -> models.ClientRounds:
    """Get a client, and its epsilon round by round; many rounds are thinned out."""
    client = client_of(found, client_id)
    after = [
        models.EpsilonAfter(round=number, epsilon=finite_or_none(epsilon))
        for curve in found.curves([client], thinned(found.finished)).each()
        for number, epsilon in zip(curve.rounds, curve.epsilons, strict=True)
    ]
    return models.ClientRounds(client=presentation.client(found.facts, client), rounds=after)


@api.get("/runs/{run_id}/charges", responses=NOT_FOUND)
def charges(
    found: TheRun,
    *,
    client_id: ClientName = "",
    round: Number | None = None,
    state: ChargeState | None = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> models.Charges:
    """List a page of the run's charges in the ledger, newest first."""
    total, rows = found.charges(client_id=client_id, round=round, state=state or "", limit=limit, offset=offset)
    return models.Charges(total=total, charges=[models.ChargeBody(**row) for row in rows])


@api.get("/runs/{run_id}/failures", responses=NOT_FOUND)
def failures(found: TheRun) -> models.FailuresBody:
    """List updates that were asked for and not used, by reason."""
    return models.FailuresBody(failures=[presentation.failure(one) for one in found.failures()])


@api.get("/runs/{run_id}/audits", responses=NOT_FOUND)
def audits(found: TheRun) -> models.Audits:
    """List the results of audits of the run."""
    return models.Audits(audits=[presentation.audit(one) for one in found.audits()])
