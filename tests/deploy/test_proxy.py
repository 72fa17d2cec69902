"""nginx as `deploy init` configures it: TLS 1.2 and 1.3, and no room for those who connect and say nothing."""

import resource
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack, suppress

import pytest

from tests.conftest import lacking
from tests.deploy.written_hosts import NGINX, deployment

SILENT = 300
HANG = 60.0
"""Seconds after which something hangs: more than the ten that a silent connection is kept (client_header_timeout)."""


@pytest.fixture
def door(tmp_path):
    """A running proxy, without a SuperLink behind it: the port, and the certificate of who is believed there."""
    if NGINX is None:
        lacking("no nginx; install it, for example apt-get install nginx-light")
    server = deployment(tmp_path, sys.prefix) / "server"
    port = tomllib.loads((server / "party.toml").read_text())["port"]
    proxy = subprocess.Popen([NGINX, "-c", server / "nginx.conf"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield port, server / "ca.crt"
    finally:
        proxy.terminate()
        proxy.wait(timeout=HANG)


def ask(port, ca, version=None):
    """The TLS version and the first line of the answer to a request."""
    trust = ssl.create_default_context(cafile=str(ca))
    if version:
        trust.set_ciphers("DEFAULT:@SECLEVEL=0")  # Python itself would refuse the old ones
        trust.minimum_version = trust.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", port), timeout=HANG) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return tls.version(), tls.recv(100).split(b"\r\n")[0].decode()


def test_the_proxy_speaks_tls_1_2_and_1_3_and_nothing_older(door):
    assert ask(*door) == ("TLSv1.3", "HTTP/1.1 404 Not Found")
    assert ask(*door, ssl.TLSVersion.TLSv1_2)[0] == "TLSv1.2"
    for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.warns(DeprecationWarning), pytest.raises((ssl.SSLError, ConnectionResetError)):
            ask(*door, old)


def still_open(connection):
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


@pytest.mark.exhaustive
def test_who_connects_and_says_nothing_is_sent_away_and_keeps_nobody_out(door):
    """Two thirds say nothing at all, one third begins to greet."""
    port, ca = door
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(SILENT)]
        for connection in silent[::3]:
            connection.sendall(b"\x16\x03\x01")
        for connection in silent:
            connection.setblocking(False)
        assert ask(port, ca)[1] == "HTTP/1.1 404 Not Found"
        assert sum(map(still_open, silent)) == SILENT
        deadline = time.monotonic() + HANG
        while left := sum(map(still_open, silent)):
            assert time.monotonic() < deadline, f"{left} are still let in"
            time.sleep(0.5)


@pytest.mark.exhaustive
def test_more_silent_connections_than_the_proxy_has_room_for_keep_nobody_out(door):
    port, ca = door
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with ExitStack() as stack:
        for _ in range(5000):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANG))
        assert ask(port, ca)[1] == "HTTP/1.1 404 Not Found"
