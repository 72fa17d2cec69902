"""Which Flower processes are left, found without the supervisor's help."""

import os
import signal
from pathlib import Path

import pytest


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes whose Flower home lies under `folder`; skips the test if there is no /proc."""
    return list(_found(folder).values())


def end(folder: Path, words: str) -> None:
    """SIGTERM, as `pkill -f` sends it, to those of them whose command line holds some words."""
    for process, command in _found(folder).items():
        if words in command:
            os.kill(process, signal.SIGTERM)


def _found(folder: Path) -> dict[int, str]:
    """Command lines by process id."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc to look at other processes")
    mark = f"FLWR_HOME={folder}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if any(variable.startswith(mark) for variable in variables.split(b"\0")):
            found[int(process.name)] = command.replace(b"\0", b" ").decode()
    return found
