"""The run that a request is about."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request

from fedprivacy.runs.store import StoredRun
from fedprivacy.server.dashboard.catalogue import Catalogue
from fedprivacy.values.spent import ClientStanding


def catalogue(request: Request) -> Catalogue:
    """All runs."""
    found: Catalogue = request.app.state.catalogue
    return found


Runs = Annotated[Catalogue, Depends(catalogue)]
RunId = Annotated[str, Path(max_length=200)]


def find(runs: Runs, run_id: RunId) -> StoredRun:
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
