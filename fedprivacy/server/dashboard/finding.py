"""The run that a request is about."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, HTTPException, Path, Request

from fedprivacy.runs.store import RunStore
from fedprivacy.runs.store.rows import StoredClient, StoredRun
from fedprivacy.server.dashboard.catalogue import Catalogue


class Found(NamedTuple):
    """A run, and where it is."""

    store: RunStore
    run: StoredRun

    @property
    def run_id(self) -> str:
        """Its name in the store."""
        return self.run.facts.run_id

    def client(self, client_id: str) -> StoredClient:
        """One of its clients.

        Raises:
            HTTPException: 404, it has none of this name.
        """
        for client in self.store.named_clients(self.run_id, [client_id]):
            return client
        raise HTTPException(404, "This run has no client of this name.")


def catalogue(request: Request) -> Catalogue:
    """All runs."""
    found: Catalogue = request.app.state.catalogue
    return found


Runs = Annotated[Catalogue, Depends(catalogue)]
RunId = Annotated[str, Path(max_length=200)]


def find(runs: Catalogue, run_id: str) -> Found:
    """A run by its name.

    Raises:
        HTTPException: 404, there is none.
    """
    store = runs.store_of(run_id)
    run = store.run(run_id) if store else None
    if store is None or run is None:
        raise HTTPException(404, "There is no run of this name.")
    return Found(store, run)


def _found(runs: Runs, run_id: RunId) -> Found:
    return find(runs, run_id)


TheRun = Annotated[Found, Depends(_found)]
