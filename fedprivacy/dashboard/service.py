"""Runs the dashboard, on its own or beside a run: where it listens, who may look, and what the user is told."""

from __future__ import annotations

import json
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

from fedprivacy.dashboard.app import dashboard_app
from fedprivacy.dashboard.catalogue import Catalogue
from fedprivacy.dashboard.live import Listeners
from fedprivacy.dashboard.security import Door, checked_token, is_loopback, new_token

TOKEN = "FEDPRIVACY_DASHBOARD_TOKEN"
"""Environment variable that holds the token: a command line is for everybody on the machine to read."""


class ServingError(ValueError):
    """An address, a certificate or a token with which the dashboard cannot be served."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the dashboard listens.

    Attributes:
        host: name or address of an interface.
        port: 0: any that is free.
        certificate: TLS certificate chain, in PEM; None: no TLS.
        key: its private key, in PEM.

    Raises:
        ServingError: a certificate without a key, or the other way round, or no such file.
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
        """Whether other machines can reach it."""
        return not is_loopback(self.host)

    @property
    def scheme(self) -> str:
        """How it is asked."""
        return "https" if self.certificate else "http"


@dataclass(frozen=True, slots=True)
class Opened:
    """What people need to know of a dashboard that is open: its page, the token if one was made, whether one is needed.

    `in_clear`: whether the token travels where others can read it.
    """

    url: str
    token: str | None
    locked: bool
    in_clear: bool

    def words(self, program: str, sources: Sequence[str]) -> str:
        """The same as rich text, for a user who calls this program so and is shown these sources."""
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


def serve(catalogue: Catalogue, address: Address, opened: Callable[[Opened], None]) -> None:
    """Serve the dashboard until somebody stops it.

    Args:
        catalogue: whose runs are shown.
        address: where to listen.
        opened: told once the page can be opened.

    Raises:
        ServingError: the address is taken, or is none of this machine's.
        TokenError: the token that the environment holds would protect nothing.
    """
    chosen = os.environ.get(TOKEN)
    made = new_token() if address.public and not chosen else None
    token = checked_token(chosen) if chosen else made
    app = dashboard_app(catalogue, Door(token, secure=address.certificate is not None))
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
        log_config=None,  # uvicorn's own would close every handler that the program has
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    try:
        socket = config.bind_socket()
    except SystemExit as refused:  # what uvicorn does with an address that it cannot have
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
    """Open a dashboard beside a run for as long as the block runs; it ends with this process, however that ends.

    It is a process of its own: the page must not slow the training down.

    Args:
        sources: see `Catalogue`.
        address: where it listens; if its port is taken, at any other.

    Yields:
        The page's URL.

    Raises:
        ServingError: it did not open.
    """
    opened = _started(sources, address) or _started(sources, Address(address.host, 0))
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
    """Leave the dashboard open until somebody in front of a terminal has seen enough."""
    if not sys.stdin.isatty():
        return
    console.print("The dashboard stays open until you press Ctrl-C.")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _started(sources: Sequence[str], address: Address) -> tuple[subprocess.Popen[str], str] | None:
    """A dashboard and its URL; None: it ended instead of opening."""
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
    """A server that says by `on_start` when it answers, and ends its listeners' streams when it ends."""

    def __init__(self, config: uvicorn.Config, listeners: Listeners, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._listeners = listeners
        self._on_start = on_start

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Start to listen."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Stop to listen."""
        self._listeners.stop()
        await super().shutdown(sockets)  # type: ignore[arg-type]
