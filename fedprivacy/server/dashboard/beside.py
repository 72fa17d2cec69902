"""A dashboard beside a run, in a process of its own: the page must not slow the training down."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console

from fedprivacy.server.dashboard.service import Address, ServingError


@contextmanager
def dashboard_beside(sources: Sequence[str], address: Address) -> Iterator[str]:
    """Open a dashboard for as long as the block runs; it ends with this process, however that ends.

    Args:
        sources: see `Catalogue`.
        address: where it listens; if its port is taken, at any other.

    Yields:
        The page's URL.

    Raises:
        ServingError: it did not open.
    """
    process = _started(sources, address) or _started(sources, Address(address.host, 0))
    if process is None:
        raise ServingError("the dashboard did not open; 'fedprivacy dashboard' says why.")
    opened, url = process
    try:
        yield url
    finally:
        assert opened.stdin is not None
        opened.stdin.close()  # which ends it
        opened.wait()


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
