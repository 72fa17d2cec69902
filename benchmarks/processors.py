"""Measure a private step on other kinds of processors, and name the method that computes its gradients there.

    python -m benchmarks.processors [--json] [--kinds avx2,generic] [--models mlp-256] [--rounds 7]
    python -m benchmarks.processors --run avx2 COMMAND ...

A processor can pretend to be an older one: environment variables that torch and its libraries read limit the
instructions that they use. Each kind is measured in a process of its own. A step is a clipped sum of the batch with
noise; its time is given in those of the same step without privacy, taken by turns. `--run` runs any command on a kind.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.gradient_models import problem
from benchmarks.gradient_steps import OurStep, nonprivate_step
from benchmarks.measure import interleaved, median, time_ratio

_NUMPY = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
"""The instructions beyond its least that numpy uses here; those of AVX-512 have these in their names."""

_AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in _NUMPY if "512" in name or name.endswith("V4")),
}

KINDS: dict[str, dict[str, str]] = {
    "native": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx2": _AVX2,
    "avx2-not-strict": _AVX2 | {"MKL_CBWR": "OFF"},
    "compatible": _AVX2 | {"MKL_CBWR": "COMPATIBLE"},
    "generic": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(_NUMPY),
    },
}
"""Environment variables of each kind: this machine as it is; without AMX; with AVX2 at most, as most desktops and
laptops; the same where torch had computed before fedprivacy was imported, or where a library has no strict mode; about
what MKL does on other makers' processors; and with SSE 4 at most."""

MODELS = ("softmax-256", "small-256", "mlp-256", "cnn-256", "lr-256")

GOALS = {"avx2": 1.3, "compatible": 1.3, "generic": 3.0}
"""The most that a step's ratio may be, in those of a processor with AVX-512."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One model on one kind.

    Attributes:
        means: how its gradients are computed.
        milliseconds: of our step.
        ratio: its time in those of the step without privacy.
    """

    means: str
    milliseconds: float
    ratio: float


def environment(kind: str) -> dict[str, str]:
    """This process's environment as that of a kind."""
    variables = {name for others in KINDS.values() for name in others}
    return {name: value for name, value in os.environ.items() if name not in variables} | KINDS[kind]


def measured(model: str, rounds: int) -> Figures:
    """A model in this process."""
    device = torch.device("cpu")
    asked = problem(model, device)
    ours = OurStep(asked)
    times = interleaved({"ours": ours, "nonprivate": nonprivate_step(asked)}, rounds, (), device)
    return Figures(ours.means, 1e3 * median(times["ours"]), time_ratio(times, "ours", "nonprivate"))


def of_kind(kind: str, models: list[str], rounds: int) -> dict[str, Figures]:
    """Every model, in a process that is of a kind."""
    command = [sys.executable, "-m", "benchmarks.processors", "--here", "--models", ",".join(models)]
    done = subprocess.run(
        [*command, "--rounds", str(rounds)], env=environment(kind), stdout=subprocess.PIPE, text=True, check=True
    )
    return {model: Figures(**figures) for model, figures in json.loads(done.stdout).items()}


def table_of(found: dict[str, dict[str, Figures]]) -> Table:
    """A row for each model and kind; the last column in the ratio on AVX-512, if that was measured."""
    table = Table("model", "kind", "method", "ms", "x non-private", "x AVX-512's ratio", box=box.SIMPLE)
    reference = found.get("avx512", {})
    for model in next(iter(found.values())):
        for kind, figures in found.items():
            one = figures[model]
            relative = one.ratio / reference[model].ratio if reference else None
            missed = relative is not None and relative > GOALS.get(kind, float("inf"))
            shown = "" if relative is None else f"{relative:.2f}{' > goal' if missed else ''}"
            table.add_row(model, kind, one.means, f"{one.milliseconds:.2f}", f"{one.ratio:.1f}", shown)
    return table


def main() -> None:
    """Measure every kind, or run a command on one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--here", action="store_true", help="measure in this process, as it is, and print JSON")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="KIND COMMAND", help="run a command on a kind")
    options = parser.parse_args()
    if options.run:
        kind, *command = options.run
        os.execvpe(command[0], command, environment(kind))
    models = options.models.split(",")
    if options.here:
        torch.set_num_threads(1)
        print(json.dumps({model: asdict(measured(model, options.rounds)) for model in models}))
        return
    found = {kind: of_kind(kind, models, options.rounds) for kind in options.kinds.split(",")}
    if options.json:
        plain = {kind: {model: asdict(one) for model, one in figures.items()} for kind, figures in found.items()}
        print(json.dumps(plain))
    else:
        Console(width=110).print(table_of(found))


if __name__ == "__main__":
    main()
