"""The resident memory of a process and of all that descend from it, as Linux counts it.

A page that several processes share counts once in all: what forked workers share with their parent, and Ray's workers
of its object store, is not counted for each of them. Pages of files, which is to say libraries, do not count: how much
of them is whose depends on what else runs on the machine.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

_PROC = Path("/proc")

_COUNTED = ("Pss_Anon", "Pss_Shmem")
"""Proportional shares of memory that no file stands behind: a process's own, and shared."""

_LEAST_PAUSE = 0.05
"""Seconds between two looks."""

_PAUSES = 20
"""Pauses so much longer than a look takes: looking takes at most a twentieth of one core."""

_KILOBYTES = 1e-3
"""MB in a kB."""


def resident_mb(process: int) -> float:
    """MB that a process and its descendants hold; 0 of one that has ended."""
    held = 0.0
    with contextlib.suppress(OSError):
        rollup = (_PROC / str(process) / "smaps_rollup").read_text()
        held = _KILOBYTES * sum(int(rollup.partition(f"\n{kind}:")[2].split()[0]) for kind in _COUNTED)
    return held + sum(resident_mb(child) for child in _children(process))


def _children(process: int) -> list[int]:
    children: list[int] = []
    for file in (_PROC / str(process) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, file.read_text().split())
    return children


def peak_mb(process: subprocess.Popen[str]) -> float:
    """The most that it holds until it ends, as often as one looks."""
    peak = 0.0
    while process.poll() is None:
        start = time.perf_counter()
        peak = max(peak, resident_mb(process.pid))
        time.sleep(max(_LEAST_PAUSE, _PAUSES * (time.perf_counter() - start)))
    return peak
