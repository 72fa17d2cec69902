"""Flower's SuperNode in a process that ends when it ends: `python -m fedprivacy.deploy.supernode OPTIONS`.

A SuperNode gives up at an error that it does not retry, such as a certificate of the server that is wrong or expired.
The thread of its HTTP API then keeps the process alive: it reaches no server again, and its unit, which starts again
what has ended, takes it for running. Here the process ends with it. The options are those of `flower-supernode`.
"""

import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points


def run(program: Callable[[], object]) -> None:
    """Run a program in the main thread, and end this process with it, whatever its other threads do."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)  # noqa: T201 - as Python does at its end
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    (supernode,) = entry_points(group="console_scripts", name="flower-supernode")
    run(supernode.load())
