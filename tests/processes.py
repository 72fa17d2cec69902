"""Processes that tests have started, and which are to end."""

import os
import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie (a container's first process may never reap those)."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def all_end(processes, seconds=60.0):
    """Whether none of the processes is left, soon."""
    end = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(map(alive, processes))
