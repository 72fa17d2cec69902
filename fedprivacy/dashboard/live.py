"""Server-sent events: the page changes as soon as the store does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, HTTPException, Request
from fastapi.responses import StreamingResponse

from fedprivacy.dashboard import presentation
from fedprivacy.dashboard.api import NOT_FOUND, Runs, TheRun, find
from fedprivacy.ledger import LedgerError
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.store import RunStore, StoredRun
from fedprivacy.values.runs import RunStatus

INTERVAL = 0.1
"""Seconds between two looks at a store."""

LISTING_INTERVAL = 1.0
"""Seconds between two looks for new runs."""

HEARTBEAT = 15.0
"""Seconds after which a silent stream sends a sign of life: proxies close others."""

MOST_LISTENERS = 100

Look = Callable[[], Awaitable[str | None]]
"""Function that looks for news: an event, or None."""

live = APIRouter(tags=["live"])

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events"},
    503: {"description": "Too many listeners"},
}


class Pulse:
    """Number of changes of each run of a store: one look serves all listeners."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._looking = asyncio.Lock()
        self._looked_at = -INTERVAL
        self._changes: dict[str, int] = {}

    async def changes_of(self, run_id: str) -> int:
        """Return the number of changes of a run, as of now or a moment ago; -1: it is gone."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= INTERVAL / 2:
                self._changes = await to_thread.run_sync(self._store.changes)
                self._looked_at = time.monotonic()
        return self._changes.get(run_id, -1)


class Listeners:
    """Registry of open streams: counts them, keeps the pulse of each store with listeners, and ends all at once."""

    def __init__(self) -> None:
        self.count = 0
        self.pulses: dict[RunStore, Pulse] = {}
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End every stream: none would end by itself, and a server that stops waits for them."""
        self._stopped.set()

    async def pause(self, seconds: float) -> bool:
        """Wait; return whether the streams go on."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)
        return not self._stopped.is_set()

    def stream(self, look: Look, interval: float) -> StreamingResponse:
        """Return a response that sends the news of a look every `interval` seconds, until its reader leaves.

        Raises:
            HTTPException: 503, there are too many already.
        """
        if self.count >= MOST_LISTENERS:
            raise HTTPException(503, f"{MOST_LISTENERS} pages are open already; close some.")
        return StreamingResponse(self._events(look, interval), media_type="text/event-stream")

    async def _events(self, look: Look, interval: float) -> AsyncIterator[str]:
        self.count += 1
        rest, said_at = 0.0, time.monotonic()
        try:
            while await self.pause(rest):
                rest = interval
                try:
                    event = await look()
                except LedgerError:  # the store is locked or unreachable for a moment; the stream continues later
                    event = None
                if event is not None or time.monotonic() - said_at > HEARTBEAT:
                    said_at = time.monotonic()
                    yield event or ": still here\n\n"
        except HTTPException:
            return  # the run is gone
        finally:
            self.count -= 1


@live.get("/runs/{run_id}/events", responses=NOT_FOUND | _STREAM, response_class=StreamingResponse)
async def run_events(
    request: Request, runs: Runs, found: TheRun, last_event_id: Annotated[str, Header(max_length=20)] = ""
) -> StreamingResponse:
    """Stream a run's finished rounds and changes of phase, as they happen; the first event is its current state."""
    listeners: Listeners = request.app.state.listeners
    seen = int(last_event_id) if last_event_id.isdecimal() else -1
    pulse = listeners.pulses.setdefault(found.store, Pulse(found.store))
    return listeners.stream(_look_at_run(pulse, runs, found.facts.run_id, seen), INTERVAL)


@live.get("/events", responses=_STREAM, response_class=StreamingResponse)
async def all_events(request: Request, runs: Runs) -> StreamingResponse:
    """Stream beginnings and ends of runs."""
    listeners: Listeners = request.app.state.listeners
    return listeners.stream(_look_at_all(runs), LISTING_INTERVAL)


def _look_at_run(pulse: Pulse, runs: Catalogue, run_id: str, seen: int) -> Look:
    """Return a function that looks whether a run has changed since the last look; its reader has seen a round."""
    changes = -1

    async def look() -> str | None:
        nonlocal changes, seen
        now = await pulse.changes_of(run_id)
        if now == changes:
            return None
        run = await to_thread.run_sync(find, runs, run_id)
        event, seen = await to_thread.run_sync(_news, run, seen)
        changes = now
        return event

    return look


def _news(found: StoredRun, seen: int) -> tuple[str, int]:
    """Return the event of a run that has changed, and its newest round."""
    run = presentation.detail(found).model_dump(mode="json")
    if found.now.last is None or found.finished == seen:
        return _event("run", {"run": run}), seen
    return _event("round", {"run": run, "round": run["last"]}, id=found.finished), found.finished


def _look_at_all(runs: Catalogue) -> Look:
    """Return a function that looks whether runs have begun or ended since the last look."""
    known: list[tuple[str, RunStatus]] | None = None

    async def look() -> str | None:
        nonlocal known
        listing = await to_thread.run_sync(runs.listing)
        before, known = known, [(run.facts.run_id, run.status) for run in listing.runs]
        return None if known == before else _event("runs", {"total": len(known)})

    return look


def _event(name: str, data: dict[str, Any], id: int | None = None) -> str:
    numbered = "" if id is None else f"id: {id}\n"
    return f"event: {name}\n{numbered}data: {json.dumps(data)}\n\n"
