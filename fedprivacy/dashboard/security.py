"""Access control: the machine's own users, or holders of the token; and strict headers for browsers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "fedprivacy-dashboard"

SHORTEST_TOKEN = 16

HEALTH = "/healthz"
"""Path of the probe: open to all under any name of the host, since it tells of no run."""

_OPEN_TO_ALL = ("/login", "/static/")
"""Prefixes of paths that are open to all: they show the login, and no run."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""Headers of every answer; an answer's own `Cache-Control` is kept."""


class TokenError(ValueError):
    """A token that would protect nothing."""


def new_token() -> str:
    """Make a token that nobody can guess: 256 bits."""
    return secrets.token_urlsafe(32)


def checked_token(token: str) -> str:
    """Check a token that the user chose.

    Raises:
        TokenError: the token is short enough to be guessed, or no header can carry it.
    """
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenError(
            f"the dashboard's token has {len(token)} characters; choose at least {SHORTEST_TOKEN}, all of them "
            "printable ASCII without spaces, or leave it out: one is made."
        )
    return token


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Door:
    """Check of the token, by a comparison in constant time.

    Args:
        token: the token; None: everybody who can reach the address has access.
        secure: whether the cookie is sent over TLS alone.
    """

    def __init__(self, token: str | None, *, secure: bool = False) -> None:
        self._token = token
        self._secure = secure
        digest = hmac.new((token or "").encode(), b"fedprivacy dashboard cookie", hashlib.sha256)
        self._cookie = digest.hexdigest()

    @property
    def locked(self) -> bool:
        """True if a token is needed."""
        return self._token is not None

    def opens(self, token: str) -> bool:
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def admits(self, headers: Headers) -> bool:
        """Return whether a request has the token, as a bearer or by the cookie that was given for it."""
        if not self.locked:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.opens(bearer.strip()):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return hmac.compare_digest(cookie.encode(), self._cookie.encode())

    def remember(self, response: Response) -> None:
        """Set a cookie so that the browser needs no token until it is closed."""
        response.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict", secure=self._secure)


class AccessMiddleware:
    """Middleware that admits requests by the door, refuses other names of a loopback address, and sets strict headers.

    A page of another origin can make a browser send requests to any address under a name that it controls (DNS
    rebinding). So if no token is needed, a request must name this machine.
    """

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the app answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith("/static/"):
                    headers.setdefault("Cache-Control", "no-cache")  # requested again, and answered by 304
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if path == HEALTH:
            return None
        if not self._door.locked and not is_loopback(_host(headers)):
            return JSONResponse({"detail": "This dashboard answers to localhost alone."}, status_code=421)
        if path.startswith(_OPEN_TO_ALL) or self._door.admits(headers):
            return None
        if path == "/":
            return RedirectResponse("/login", status_code=303)
        challenge = {"WWW-Authenticate": "Bearer"}
        return JSONResponse({"detail": "The dashboard's token is needed."}, status_code=401, headers=challenge)


def _host(headers: Headers) -> str:
    """Return the host name of a request, without its port."""
    host = headers.get("host", "")
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
