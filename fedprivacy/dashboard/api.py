"""The API: read-only, versioned, described by OpenAPI.

Its routes about runs and their clients, and the parameters that all routes share: the catalogue and the run that a
request is about, with the errors where there is none, and limits of texts and pages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from pydantic import AfterValidator, WithJsonSchema

from fedprivacy.dashboard import presentation
from fedprivacy.ledger import ChargeState
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.store import ClientQuery, StoredRun
from fedprivacy.values.columns import CLIENT_COLUMNS
from fedprivacy.values.numbers import finite_or_none
from fedprivacy.values.runs import RunStatus
from fedprivacy.values.series import spread_rounds
from fedprivacy.values.spent import ClientState

ROOT = "/api/v1"

api = APIRouter(tags=["runs"])

NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": presentation.ProblemBody}}
NOTHING_YET = NOT_FOUND | {409: {"model": presentation.ProblemBody}}

Words = Annotated[str, Query(max_length=200)]
ClientName = Annotated[str, Query(max_length=500)]
Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=10_000_000)]
Number = Annotated[int, Query(ge=0, le=1_000_000_000)]


def _catalogue(request: Request) -> Catalogue:
    """Return the app's catalogue."""
    found: Catalogue = request.app.state.catalogue
    return found


Runs = Annotated[Catalogue, Depends(_catalogue)]


def find(runs: Runs, run_id: Annotated[str, Path(max_length=200)]) -> StoredRun:
    """Return a run by its name.

    Raises:
        HTTPException: 404, there is none.
    """
    store = runs.store_of(run_id)
    run = store.run(run_id) if store else None
    if run is None:
        raise HTTPException(404, "There is no run of this name.")
    return run


TheRun = Annotated[StoredRun, Depends(find)]


def one_of(names: Collection[str], noun: str) -> AfterValidator:
    """Make a check that something is called by one of these names."""

    def existing(name: str) -> str:
        if name not in names:
            raise ValueError(f"there is no {noun} '{name}'; choose from {', '.join(names)}")
        return name

    return AfterValidator(existing)


_SORTED = {column.name: column.sort for column in CLIENT_COLUMNS if column.sort}
SortBy = Annotated[str, one_of(_SORTED, "column"), WithJsonSchema({"type": "string", "enum": list(_SORTED)})]


@api.get("/runs")
def runs(
    catalogue: Runs, search: Words = "", status: RunStatus | None = None, limit: Limit = 50, offset: Offset = 0
) -> presentation.Runs:
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
    return presentation.Runs(total=len(found), runs=page, problems=listing.problems)


@api.get("/runs/{run_id}", responses=NOT_FOUND)
def run(found: TheRun) -> presentation.RunBody:
    """Get the current state of one run."""
    return presentation.detail(found)


@api.get("/runs/{run_id}/rounds", responses=NOT_FOUND)
def rounds(found: TheRun, after: Number = 0, limit: Limit = 500) -> presentation.RoundsBody:
    """List finished rounds after a given one, ascending."""
    points = found.points(range(after + 1, min(after + limit, found.finished) + 1))
    told = [presentation.finished_round(found.facts, point) for point in points]
    return presentation.RoundsBody(total=found.finished, rounds=told)


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
) -> presentation.Clients:
    """List a page of clients."""
    query = ClientQuery(
        sort=_SORTED[sort], descending=order == "desc", search=search, state=state or "", limit=limit, offset=offset
    )
    total, page = found.clients(query)
    return presentation.Clients(total=total, clients=[presentation.client(found.facts, one) for one in page])


@api.get("/runs/{run_id}/clients/{client_id:path}/rounds", responses=NOT_FOUND)
def client_rounds(found: TheRun, client_id: Annotated[str, Path(max_length=500)]) -> presentation.ClientRounds:
    """Get a client, and its epsilon round by round; many rounds are thinned out."""
    client = next(iter(found.standings_of([client_id])), None)
    if client is None:
        raise HTTPException(404, "This run has no client of this name.")
    after = [
        presentation.EpsilonAfter(round=number, epsilon=finite_or_none(epsilon))
        for curve in found.curves([client], spread_rounds(found.finished)).each()
        for number, epsilon in zip(curve.rounds, curve.epsilons, strict=True)
    ]
    return presentation.ClientRounds(client=presentation.client(found.facts, client), rounds=after)


@api.get("/runs/{run_id}/charges", responses=NOT_FOUND)
def charges(
    found: TheRun,
    *,
    client_id: ClientName = "",
    round: Number | None = None,
    state: ChargeState | None = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> presentation.Charges:
    """List a page of the run's charges in the ledger, newest first."""
    total, rows = found.charges(client_id=client_id, round=round, state=state or "", limit=limit, offset=offset)
    return presentation.Charges(total=total, charges=[presentation.ChargeBody(**row) for row in rows])


@api.get("/runs/{run_id}/failures", responses=NOT_FOUND)
def failures(found: TheRun) -> presentation.FailuresBody:
    """List updates that were asked for and not used, by reason."""
    return presentation.FailuresBody(failures=[presentation.failure(one) for one in found.failures()])


@api.get("/runs/{run_id}/audits", responses=NOT_FOUND)
def audits(found: TheRun) -> presentation.Audits:
    """List the results of audits of the run."""
    return presentation.Audits(audits=[presentation.audit(one) for one in found.audits()])
