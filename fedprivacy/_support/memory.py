"""Memory of this process: how much it may hold, errors that say that it ran out, and freed memory that is kept."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_SAID = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED", "bad_alloc")
"""Texts in torch's `RuntimeError` about memory: its allocators on a CPU, CUDA, cuBLAS, cuDNN, C++."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

_LARGEST_KEPT = 2**25
"""Bytes of the largest block that is kept; more is more than older versions of glibc allow."""

_MOST_KEPT = 2**28
"""Free bytes beyond which memory goes back to the system after all."""


def attainable_bytes(root: Path = Path("/")) -> int | None:
    """Return how many bytes this process may hold in all before Linux ends it; None where that cannot be read.

    Those that it holds, and the least of what the machine has available and of what is left in each control group (a
    service's `MemoryMax`, a container's limit) of this process, version 1 or 2. Cached files count as available: Linux
    drops them.

    Args:
        root: folder that holds `proc` and `sys`.
    """
    try:
        known = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
        machine = int(known["MemAvailable"].split()[0]) * 1024
        held = int((root / "proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, KeyError, ValueError):
        return None
    return held + min([machine, *_left_in_groups(root)])


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield the bytes that are left in each control group that has a limit."""
    for folder, limit, usage, cached in _groups(root):
        try:
            counted = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used = int((folder / usage).read_text()) - int(counted.get(cached, 0))
            yield max(int((folder / limit).read_text()) - used, 0)
        except (OSError, ValueError):  # "max", or the root of version 2, which has no limit
            continue


def _groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield this process's control groups and those around them: folder, and names of limit, usage and cached bytes."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            names = ("", "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            names = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        mounted = root / "sys/fs/cgroup" / names[0]
        inner = mounted / path.lstrip("/")
        for folder in (inner, *inner.parents):  # a container sees its own group as the mounted folder itself
            if folder.is_relative_to(mounted):
                yield folder, *names[1:]


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: Python's, an accelerator's, or torch's on a CPU.

    No single record is at fault then, and none may be left out for it. A part of a batch takes more memory the more
    records are in it: if all its records were dropped when it does not fit, one more record would take the others out
    of the sum.
    """
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    )


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory, up to 256 MiB, in this process; for processes that train, and only on Linux with glibc.

    glibc gives large blocks back to the system as soon as they are freed, and the system hands them out again page by
    page, each filled with zeros. On a CPU a step of a residual net spends a tenth to a quarter of its time on that.
    The process then holds on to the most that it ever needed, as it does at the height of every step anyway.

    Returns:
        Whether the allocator can be told so.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return all(mallopt(*setting) for setting in ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _MOST_KEPT)))
