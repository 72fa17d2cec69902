"""What requests have in common: the run and the client that they are about, and the answer where there is none."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Path, Query, Request

from fedprivacy.runs.store import StoredRun
from fedprivacy.server.dashboard import models
from fedprivacy.server.dashboard.catalogue import Catalogue
from fedprivacy.values.spent import ClientStanding

NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": models.Problem}}
NOTHING_YET = NOT_FOUND | {409: {"model": models.Problem}}

Words = Annotated[str, Query(max_length=200)]
ClientName = Annotated[str, Query(max_length=500)]


def catalogue(request: Request) -> Catalogue:
    """All runs."""
    found: Catalogue = request.app.state.catalogue
    return found


Runs = Annotated[Catalogue, Depends(catalogue)]


def find(runs: Runs, run_id: Annotated[str, Path(max_length=200)]) -> StoredRun:
    """A run by its name.

    Raises:
        HTTPException: 404, there is none.
    """
    store = runs.store_of(run_id)
    run = store.run(run_id) if store else None
    if run is None:
        raise HTTPException(404, "There is no run of this name.")
    return run


TheRun = Annotated[StoredRun, Depends(find)]


def client_of(run: StoredRun, client_id: str) -> ClientStanding:
    """One of a run's clients.

    Raises:
        HTTPException: 404, it has none of this name.
    """
    for client in run.named([client_id]):
        return client
    raise HTTPException(404, "This run has no client of this name.")
