"""Flower's SuperExec, whose apps are forked from a process that has imported their libraries already.

    python warm.py OPTIONS  # those of flower-superexec

An app of a deployment is a process for each message, and most of its time goes into imports.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points

LIBRARIES = ("torch", "fedprivacy.server.app", "fedprivacy.flower.client.client_app")
"""Imports of the apps on both sides."""


def program(name):
    """The function of one of Flower's programs."""
    (found,) = entry_points(group="console_scripts", name=name)
    return found.load()


def bury(*_):
    """Wait for those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def fork_apps(orders):
    """Fork an app for each order, a program's words, until nobody orders any more; return the app in its process."""
    signal.signal(signal.SIGCHLD, bury)
    while order := orders.recv(1 << 16):
        for library in LIBRARIES:
            import_module(library)
        app = program((order := json.loads(order))["words"][0])
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            if order["silent"]:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(1, 2)
            sys.argv = order["words"]
            return app
    return lambda: None


class Ordered:
    """The module `subprocess`, as far as the SuperExec uses it to start an app."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self, orders):
        self._orders = orders

    def Popen(self, words, **silent):  # noqa: N802 - as it is called there
        self._orders.send(json.dumps({"words": words, "silent": bool(silent)}).encode())


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules no app should find
    superexec = program("flower-superexec")
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        sys.exit(fork_apps(there)())
    there.close()
    import_module("flwr.supercore.superexec.executor.subprocess_executor").subprocess = Ordered(here)
    sys.exit(superexec())
