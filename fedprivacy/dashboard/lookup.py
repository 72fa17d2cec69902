"""The catalogue, the run and the client that a request is about."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import fastapi
from fastapi import Depends, HTTPException, Query, Request
from pydantic import AfterValidator

from fedprivacy.dashboard import models
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.store import StoredRun
from fedprivacy.values.spent import ClientStanding

NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": models.ProblemBody}}
NOTHING_YET = NOT_FOUND | {409: {"model": models.ProblemBody}}

Words = Annotated[str, Query(max_length=200)]
ClientName = Annotated[str, Query(max_length=500)]


def _catalogue(request: Request) -> Catalogue:
    """Return the app's catalogue."""
    found: Catalogue = request.app.state.catalogue
    return found


Runs = Annotated[Catalogue, Depends(_catalogue)]


def find(runs: Runs, run_id: Annotated[str, fastapi.Path(max_length=200)]) -> StoredRun:
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


def client_of(run: StoredRun, client_id: str) -> ClientStanding:
    """Return one of a run's clients.

    Raises:
        HTTPException: 404, it has no client of this name.
    """
    for client in run.named([client_id]):
        return client
    raise HTTPException(404, "This run has no client of this name.")


def one_of(names: Collection[str], noun: str) -> AfterValidator:
    """Make a check that something is called by one of these names."""

    def existing(name: str) -> str:
        if name not in names:
            raise ValueError(f"there is no {noun} '{name}'; choose from {', '.join(names)}")
        return name

    return AfterValidator(existing)
