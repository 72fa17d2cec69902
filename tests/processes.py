"""Processes that tests start: forked children that do something and end or die, and the ends of others."""

import gc
import os
import signal
import time
import traceback
from pathlib import Path

KILLED = -signal.SIGKILL
HANGS = 300
"""Seconds after which a child that has not ended ends by SIGALRM."""


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
            gc.freeze()  # a collection would touch, and so copy, all that the parent has imported
            signal.alarm(HANGS)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie (a container's first process may never reap those)."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def all_end(processes, seconds=60.0):
    """Return whether none of the processes is left, soon."""
    end = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(map(alive, processes))
