"""Findings told line by line, each as soon as it is there: a benchmark that is cut leaves what it has measured.

A finding is a dictionary, and a benchmark's findings together are one: those of `{"models": {"lr-256": ...}}` and
`{"models": {"mlp-256": ...}}` have both models.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Finding = Mapping[str, Any]

_LOOK_SECONDS = 0.2


def tell(file: Path | None, finding: Finding) -> None:
    """Append a finding to a file; None: nobody reads it."""
    if file is not None:
        with file.open("a") as lines:
            lines.write(json.dumps(finding) + "\n")


def joined(found: Finding, finding: Finding) -> dict[str, Any]:
    """Join a finding to those before it: dictionaries with theirs, lists at their end, anything else in their place."""
    result = dict(found)
    for name, value in finding.items():
        before = result.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[name] = joined(before, value)
        else:
            result[name] = [*before, *value] if isinstance(before, list) else value
    return result


def told(process: subprocess.Popen[str], file: Path, limit: float) -> Iterator[Finding]:
    """Yield a process's findings while it writes them; none of a line that it does not finish.

    Raises:
        TimeoutExpired: the process still runs after so many seconds.
    """
    end, read = time.monotonic() + limit, 0
    while True:
        ended = process.poll() is not None  # before the look: what it wrote last is read
        *lines, _ = file.read_bytes()[read:].split(b"\n") if file.exists() else [b""]
        for line in lines:
            read += len(line) + 1
            yield json.loads(line)
        if ended:
            return
        if time.monotonic() > end:
            raise subprocess.TimeoutExpired(process.args, limit)
        time.sleep(_LOOK_SECONDS)
