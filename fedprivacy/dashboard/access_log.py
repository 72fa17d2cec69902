"""Access log of the dashboard: who asked for which path, what came of it, and how long it took."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedprivacy.dashboard.security import HEALTH

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
