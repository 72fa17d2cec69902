"""This process as the driver of a Ray cluster that runs already: found, joined, and left running.

Ray waits a minute or more for what is not there, and then says little of it: what can be seen before is looked at
before. That, and quiet in the terminal, leans on three functions that Ray does not publish: how it finds a cluster, how
it looks for its processes on this machine, and how it prints what it hears of its machines.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedprivacy.runs.placement import NEAREST
from fedprivacy.runs.settings.configuration import ConfigError

_SECONDS = 5.0
"""Seconds to wait for a connection."""


@contextmanager
def join_cluster(address: str) -> Iterator[Any]:
    """The module `ray`, as long as this process belongs to a cluster. Ray's own words stay out of the terminal.

    Args:
        address: "host:port", or "auto".

    Raises:
        ConfigError: it cannot belong to it; says why, and what to do.
    """
    import ray

    if ray.is_initialized():
        raise _refusal(address, "this process belongs to a cluster already", "call ray.shutdown() before")
    _check_reachable(address)
    with _quiet():
        try:
            with _own_sigterm():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError) as error:
            ray.shutdown()
            why = f"Ray does not let this process join it ({' '.join(str(error).split()).rstrip('.')})"
            raise _refusal(
                address, why, "see that the cluster runs, with the Python and the Ray of this process"
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise a `ConfigError` unless a cluster listens at an address, and this machine is one of its."""
    from ray._private import services

    try:
        found: str | None = services.canonicalize_bootstrap_address(address)
    except ConnectionError:
        found = None
    if found is None:
        raise _refusal(address, "no cluster runs on this machine", "start one by 'ray start --head', or give host:port")
    try:
        socket.create_connection(_host_and_port(found), _SECONDS).close()
    except OSError as error:
        raise _refusal(
            address,
            f"nothing listens at {found} ({error})",
            "give the address that 'ray start --head' printed on the cluster's first machine",
        ) from error
    own: set[str] = set(services.find_gcs_addresses())  # type: ignore[no-untyped-call]
    if not any(_same_place(found, other) for other in own):
        whose = f"belongs to the cluster at {', '.join(sorted(own))}" if own else "belongs to no cluster"
        raise _refusal(
            address,
            f"this machine {whose}",
            f"start this on a machine of {found}, or first run 'ray start --address {found} --num-cpus 0' here",
        )


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _same_place(one: str, other: str) -> bool:
    """Tell whether two addresses are of one port of one machine."""
    if one == other:
        return True
    try:
        places = [{found[4] for found in socket.getaddrinfo(*_host_and_port(it))} for it in (one, other)]
    except OSError:  # a name that nobody knows
        return False
    return not places[0].isdisjoint(places[1])


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Ray neither warn nor print of dead machines: what matters of these is in our own log."""
    from ray._private import worker

    printing, worker.print_to_stdstream = worker.print_to_stdstream, lambda *_, **__: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        worker.print_to_stdstream = printing


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler that is there, with which a scheduler's SIGTERM ends a run in order: Ray brings its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refusal(address: str, problem: str, remedy: str) -> ConfigError:
    known = os.environ.get("RAY_ADDRESS") if address == NEAREST else None
    return ConfigError(
        f"ray-address is '{address}'{f' (RAY_ADDRESS: {known})' if known else ''}, but {problem}; {remedy}."
    )
