"""Children that do something to a guard, and die."""

import os
import signal
import traceback

KILLED = -signal.SIGKILL


def in_child(act):
    """Run `act` in a forked process; its exit code, negative for a signal as `subprocess` has it."""
    return at_once(act)[0]


def at_once(*acts):
    """Run each of `acts` in a forked process of its own; their exit codes."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in [_fork(act) for act in acts]]


def _fork(act):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child
