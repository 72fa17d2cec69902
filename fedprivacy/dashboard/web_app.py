"""The dashboard as one ASGI app: the page, its API and its events, behind one access control."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedprivacy.dashboard.api import ROOT, Runs, api
from fedprivacy.dashboard.drawings import drawings
from fedprivacy.dashboard.experiments import experiments
from fedprivacy.dashboard.live import Listeners, live
from fedprivacy.dashboard.security import HEALTH, AccessMiddleware, Door
from fedprivacy.ledger import LedgerError
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.values.columns import PAGE_COLUMNS

_LONGEST_FORM = 4096

PAGE = Path(__file__).parent / "page"

_PRINT_VEGA = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"

_DESCRIPTION = """Read-only: no request changes a run, a ledger or a budget.
Every epsilon is the server's view, by the PLD accountant, at the delta beside it."""


def dashboard_app(catalogue: Catalogue, door: Door) -> FastAPI:
    """Make the dashboard's app.

    Args:
        catalogue: catalogue of the runs that are shown.
        door: access control.
    """
    app = FastAPI(
        title="fedprivacy dashboard",
        description=_DESCRIPTION,
        version=version("fedprivacy"),
        openapi_url=f"{ROOT}/openapi.json",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.catalogue = catalogue
    app.state.listeners = Listeners()
    for router in (api, drawings, experiments, live):
        app.include_router(router, prefix=ROOT)
    app.add_exception_handler(LedgerError, _store_is_away)
    _add_page(app, door)
    app.add_middleware(GZipMiddleware, minimum_size=1000)
    app.add_middleware(AccessMiddleware, door=door)
    app.add_middleware(AccessLogMiddleware)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.vega = await to_thread.run_sync(bundled_vega)
    yield
    app.state.catalogue.close()


def bundled_vega() -> tuple[bytes, str]:
    """Bundle Vega, Vega-Lite and vega-embed as one script, from the installed vl-convert: nothing is loaded from
    elsewhere.

    It takes a second, in a separate process: the bundler needs more memory than all of the dashboard. The script is
    compressed by gzip; its ETag depends on its contents.

    Raises:
        subprocess.CalledProcessError: vl-convert could not make it.
    """
    made = subprocess.run([sys.executable, "-c", _PRINT_VEGA], check=True, capture_output=True)
    return gzip.compress(made.stdout, mtime=0), f'"{hashlib.sha256(made.stdout).hexdigest()[:16]}"'


async def _store_is_away(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": f"The run store cannot be read now: {error}"}, status_code=503)


async def _given_token(request: Request) -> str:
    """Read the token from a form; empty: none, or longer than a token could be."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_FORM:
            return ""
    return parse_qs(body.decode("ascii", "replace")).get("token", [""])[0]


def _add_page(app: FastAPI, door: Door) -> None:
    """Add the page, the login and Prometheus' figures behind one access control, and the probe without it."""
    probe = asyncio.Lock()

    @app.api_route(HEALTH, methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> JSONResponse:
        async with probe:  # a store that hangs holds one thread, however many ask
            broken = await to_thread.run_sync(app.state.catalogue.problems)
        return JSONResponse({"status": "broken" if broken else "ok", "broken": broken}, 503 if broken else 200)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/login", include_in_schema=False)
    def login() -> Response:
        return FileResponse(PAGE / "login.html") if door.locked else RedirectResponse("/", status_code=303)

    @app.post("/login", include_in_schema=False)
    async def enter(request: Request) -> Response:
        if not door.opens(await _given_token(request)):
            return FileResponse(PAGE / "login.html", status_code=401)
        answer = RedirectResponse("/", status_code=303)
        door.remember(answer)
        return answer

    @app.get("/static/vega.js", include_in_schema=False)
    def vega_script(request: Request) -> Response:
        compressed, etag = request.app.state.vega
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(compressed, media_type="text/javascript", headers=headers | {"Content-Encoding": "gzip"})

    @app.get("/static/columns.js", include_in_schema=False)
    def columns_script() -> Response:
        columns = [{"name": each.name, "heading": each.heading, "look": each.look} for each in PAGE_COLUMNS]
        return Response(f"export const PAGE_COLUMNS = {json.dumps(columns)};\n", media_type="text/javascript")

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request, catalogue: Runs) -> Response:
        state = request.app.state
        if not hasattr(state, "collector"):
            try:
                from fedprivacy.dashboard.collector import RunCollector
            except ModuleNotFoundError as error:
                raise HTTPException(
                    501, "/metrics needs prometheus-client; install 'fedprivacy[prometheus]'."
                ) from error
            state.collector = RunCollector(catalogue)
        answer: Response = state.collector.exposition(request.headers.get("accept", ""))
        return answer

    app.mount("/static", StaticFiles(directory=PAGE))


log = logging.getLogger("fedprivacy.dashboard.access")


class AccessLogMiddleware:
    """Middleware that logs every request when its answer has ended; never a query, a header or a body.

    A refusal (401, 421) is a warning, an answer from 500 on an error; a probe is logged at debug if nothing is wrong.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer, then log."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500  # what a browser gets if the app raises

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            address = scope["client"][0] if scope.get("client") else "-"
            milliseconds = round(1e3 * (time.perf_counter() - began), 1)
            fields = {"address": address, "method": scope["method"], "path": scope["path"], "status": status}
            log.log(
                _level(scope["path"], status),
                "%s %s %d",
                scope["method"],
                scope["path"],
                status,
                extra={"fields": fields | {"ms": milliseconds}},
            )


def _level(path: str, status: int) -> int:
    if status >= 500:
        return logging.ERROR
    if status in {401, 421}:
        return logging.WARNING
    return logging.DEBUG if path == HEALTH else logging.INFO
