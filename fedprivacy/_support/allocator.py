"""Setting of the process's memory allocator: keep what a training step frees for the next one.

glibc gives large blocks back to the system as soon as they are freed, and the system hands them out again page by page,
each filled with zeros. On a CPU a step of a residual net spends a tenth to a quarter of its time on that.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

_LARGEST_KEPT = 2**25
"""Bytes of the largest block that is kept; more is more than older versions of glibc allow."""

_MOST_KEPT = 2**28
"""Free bytes beyond which memory goes back to the system after all."""


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory, up to 256 MiB, in this process; for processes that train, and only on Linux with glibc.

    The process then holds on to the most that it ever needed, as it does at the height of every step anyway.

    Returns:
        Whether the allocator can be told so.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return all(mallopt(*setting) for setting in ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, _MOST_KEPT)))
