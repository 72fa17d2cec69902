"""What Flower's programs need around them: where they are, their environment variables, ports, configuration files."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

HOST = "127.0.0.1"
"""The only interface that a rehearsal uses."""

Scalar = bool | int | float | str
"""A value of Flower's run and node configurations."""


def flower_environment(home: Path) -> dict[str, str]:
    """Environment of a Flower process: its own state, this Python's programs, nothing sent out, nothing installed."""
    return {
        "FLWR_HOME": str(home),
        "PATH": f"{_scripts()}{os.pathsep}{os.environ.get('PATH', '')}",  # Flower starts its own programs by bare name
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # several clients share this host
    }


def write_toml(path: Path, tables: Mapping[str, Mapping[str, Scalar]]) -> None:
    """Write tables of scalars as TOML; the table named "" is the top level and comes first."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {toml_scalar(value)}" for key, value in table.items()]
    path.write_text("\n".join(lines) + "\n")


def toml_scalar(value: Scalar) -> str:
    """A value as TOML has it: as JSON has it, except for the infinities, which JSON cannot write."""
    return str(value) if value in (math.inf, -math.inf) else json.dumps(value)


def _scripts() -> Path:
    return Path(sys.executable).parent


def program(name: str) -> Path:
    """A program of this Python environment, activated or not.

    Raises:
        FileNotFoundError: it is not installed.
    """
    found = shutil.which(name, path=f"{_scripts()}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed beside {sys.executable}; install fedprivacy there with pip.")
    return Path(found)


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind((HOST, 0))
        return [listener.getsockname()[1] for listener in sockets]
