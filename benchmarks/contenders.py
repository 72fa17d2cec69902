"""One turn of a simulation in a process of its own, whose memory is watched from outside.

The process says when it has imported what it needs; what it holds then is not counted. Its rounds follow, and what it
noted of them. Whatever a library prints goes to standard error, which is shown where a contender fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import TextIO

import torch

from benchmarks.populations import SETTINGS, Setting
from benchmarks.resident import peak_mb, resident_mb

OURS, OURS_ON_TWO, FLOWER, PFL, BARE = NAMES = (
    "fedprivacy",
    "fedprivacy_2",
    "flower_opacus",
    "pfl_central",
    "bare_nonprivate",
)

SLOW = frozenset({FLOWER})
"""Contenders that take fewer rounds and turns."""

_FUNCTIONS = {
    OURS: ("benchmarks.simulators", "fedprivacy_rounds"),
    OURS_ON_TWO: ("benchmarks.simulators", "fedprivacy_rounds"),
    FLOWER: ("benchmarks.peers_flower", "flower_rounds"),
    PFL: ("benchmarks.peers_pfl", "pfl_rounds"),
    BARE: ("benchmarks.simulators", "bare_rounds"),
}

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
"""In every process, Ray's workers too: a contender has as many cores as it has processes that train."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took.

    Attributes:
        rounds_s: seconds of each round but the first, which warms up.
        set_up_s: seconds before the first round.
        finish_s: seconds after the last.
        peak_mb: the most that the process and its descendants held, beyond what it held after its imports.
    """

    rounds_s: list[float]
    set_up_s: float
    finish_s: float
    peak_mb: float


class ContenderFailed(Exception):
    """A contender cannot take part; says why."""


def take_turn(contender: str, setting: Setting, rounds: int) -> Turn:
    """Run a contender in a process of its own.

    Args:
        contender: one of `NAMES`.
        setting: one of `SETTINGS`, perhaps with other numbers of users.
        rounds: to be timed, after one that warms up.

    Raises:
        ContenderFailed: it did not come to its end.
    """
    size = f"{setting.users},{setting.cohort},{rounds}"
    command = [sys.executable, "-m", "benchmarks.contenders", contender, setting.name, size, setting.device]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | _ONE_THREAD
        )
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            before = resident_mb(process.pid)
            peak = peak_mb(process)
            told = process.stdout.read()
        if process.returncode:
            raise ContenderFailed(_last_line(errors))
    return Turn(**json.loads(told), peak_mb=max(peak - before, 0.0))


def _last_line(errors: TextIO) -> str:
    errors.seek(0)
    return (errors.read().strip().splitlines() or ["it says nothing"])[-1]


def main() -> None:
    """The process of one turn."""
    contender, name, size, device = sys.argv[1:]
    users, cohort, rounds = map(int, size.split(","))
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    module, function = _FUNCTIONS[contender]
    run = getattr(import_module(module), function)
    import_module("torch._dynamo")  # an optimizer of torch's imports it when it is made
    print("imported", file=tell, flush=True)
    start = time.perf_counter()
    settings = {"workers": 2} if contender == OURS_ON_TWO else {}
    marks = run(replace(SETTINGS[name], users=users, cohort=cohort, device=device), rounds + 1, **settings)
    end = time.perf_counter()
    durations = [after - before for before, after in pairwise(marks)]
    figures = {"rounds_s": durations[1:], "set_up_s": marks[0] - start, "finish_s": end - marks[-1]}
    print(json.dumps(figures), file=tell, flush=True)


if __name__ == "__main__":
    main()
