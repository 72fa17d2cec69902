"""Memory that this process may hold: what it holds, what the machine has left, what its service's limit allows."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path


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
