"""Service that runs the dashboard, alone or beside a run: its address, its access, and its messages to the user."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from rich.console import Console

from fedprivacy._support.logs import conceal
from fedprivacy.dashboard.live import Listeners
from fedprivacy.dashboard.security import SHORTEST_TOKEN, Door, TokenError, checked_token, is_loopback, new_token
from fedprivacy.dashboard.web_app import dashboard_app
from fedprivacy.runs.records.catalogue import Catalogue

log = logging.getLogger("fedprivacy.dashboard")

TOKEN = "FEDPRIVACY_DASHBOARD_TOKEN"
"""Name of the environment variable that holds the token: others on the machine could read a command line."""


class ServingError(ValueError):
    """An address, a certificate or a token with which the dashboard cannot be served."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of the dashboard.

    Attributes:
        host: name or address of an interface.
        port: port number; 0: any that is free.
        certificate: TLS certificate chain, in PEM; None: no TLS.
        key: private key of the certificate, in PEM.

    Raises:
        ServingError: certificate or key is missing, or a file does not exist.
    """

    host: str = "127.0.0.1"
    port: int = 8050
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ServingError("TLS needs both --tls-certificate and --tls-key; give both, or neither.")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise ServingError(f"'{file}' is no file; name one in PEM.")

    @property
    def public(self) -> bool:
        """True if other machines can reach it."""
        return not is_loopback(self.host)

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"


@dataclass(frozen=True, slots=True)
class Opened:
    """Facts about an open dashboard: its page, the token if one was made, and whether a token is needed.

    `in_clear`: whether the token is sent where others can read it.
    """

    url: str
    token: str | None
    locked: bool
    in_clear: bool

    def words(self, program: str, sources: Sequence[str]) -> str:
        """Describe the dashboard as rich text, given the user's name of the program and the sources that it shows."""
        lines = [f"Dashboard: [bold]{self.url}[/]  (Ctrl-C ends it)"]
        if self.token:
            lines.append(f"Other machines can reach it, so it asks for a token: [bold]{self.token}[/]")
        elif self.locked:
            lines.append(f"It asks for the token that {TOKEN} holds.")
        if self.in_clear:
            lines.append(
                "[yellow]Without TLS, the token and all figures travel in clear[/]: give --tls-certificate and "
                "--tls-key, or put a proxy with TLS before it."
            )
        if not sources:
            lines.append(f"There is no run to show here yet. Next: {program} simulate --dashboard")
        return "\n".join(lines)

    def log(self) -> None:
        """Log that the dashboard is open; the token, if one was made, is in no event."""
        log.info("The dashboard answers at %s.", self.url)
        if self.in_clear:
            log.warning("The token and all figures travel in clear: there is no TLS.")


def serve(catalogue: Catalogue, address: Address, opened: Callable[[Opened], None], *, shown: bool = True) -> None:
    """Serve the dashboard until it is stopped.

    Args:
        catalogue: catalogue of the runs that are shown.
        address: address to listen on.
        opened: function that is called once the page can be opened.
        shown: whether `opened` shows somebody a token that was made, other than in a log.

    Raises:
        ServingError: the address is taken, or does not belong to this machine.
        TokenError: the token in the environment would protect nothing; or there is none, and nobody would see one.
    """
    chosen = os.environ.get(TOKEN)
    if address.public and not chosen and not shown:
        raise TokenError(
            f"other machines can reach --host {address.host}, so a token is needed, and no terminal shows one that is "
            f"made here: a log must not hold it. Put one of at least {SHORTEST_TOKEN} characters into {TOKEN}."
        )
    made = new_token() if address.public and not chosen else None
    token = checked_token(chosen) if chosen else made
    if token:
        conceal(token)
    app = dashboard_app(catalogue, Door(token, secure=address.certificate is not None))
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
        log_config=None,  # uvicorn's own configuration would close every handler of the program
        log_level="warning",
        access_log=False,  # it would log queries
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    try:
        socket = config.bind_socket()
    except SystemExit as refused:  # uvicorn exits if it cannot have the address
        raise ServingError(
            f"--host {address.host} and --port {address.port} cannot be listened to; choose another port, or a host of "
            "this machine."
        ) from refused
    host = f"[{address.host}]" if ":" in address.host else address.host
    url = f"{address.scheme}://{host}:{socket.getsockname()[1]}/"
    page = Opened(url, made, token is not None, address.public and not address.certificate)
    Server(config, app.state.listeners, lambda: opened(page)).run([socket])


def end_with_stdin() -> None:
    """End this process when its parent closes the pipe between them, or is gone."""

    def wait() -> None:
        sys.stdin.read()
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def dashboard_beside(sources: Sequence[str], address: Address) -> Iterator[str]:
    """Open a dashboard beside a run while the block runs; it ends with this process, however that ends.

    It is a separate process, so that the page does not slow down the training.

    Args:
        sources: see `Catalogue`.
        address: address to listen on; if its port is taken, any other port.

    Yields:
        The page's URL.

    Raises:
        ServingError: it did not open.
    """
    opened = _start(sources, address) or _start(sources, Address(address.host, 0))
    if opened is None:
        raise ServingError("the dashboard did not open; 'fedprivacy dashboard' says why.")
    process, url = opened
    try:
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()  # which ends it
        process.wait()


def wait_for_reader(console: Console) -> None:
    """Leave the dashboard open until the user at a terminal has seen enough."""
    if not sys.stdin.isatty():
        return
    console.print("The dashboard stays open until you press Ctrl-C.")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _start(sources: Sequence[str], address: Address) -> tuple[subprocess.Popen[str], str] | None:
    """Start a dashboard and return it with its URL; None: it ended instead of opening."""
    stores = [part for source in sources for part in ("--store", source)]
    where = ["--host", address.host, "--port", str(address.port), "--json", "--until-stdin-ends"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedprivacy", "dashboard", *stores, *where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the run, which then ends its dashboard
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if line:
        return process, str(json.loads(line)["url"])
    process.wait()
    return None


class Server(uvicorn.Server):
    """Server that calls `on_start` when it answers, and ends its listeners' streams when it stops."""

    def __init__(self, config: uvicorn.Config, listeners: Listeners, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._listeners = listeners
        self._on_start = on_start

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Start listening."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Stop listening."""
        self._listeners.stop()
        await super().shutdown(sockets)  # type: ignore[arg-type]
        log.info("The dashboard has ended.")
