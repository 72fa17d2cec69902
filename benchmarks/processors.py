"""Measure a private step on other kinds of processors, and name the method that computes its gradients there.

    python -m benchmarks.processors [--json] [--kinds avx2,generic] [--models mlp-256] [--rounds 7]

The kinds are those of `tests.support.processors`, which runs any command on one of them. Each is measured in a process
of its own. A step is a clipped sum of the batch with noise; its time is given in those of the same step without
privacy, taken by turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.gradient_models import problem
from benchmarks.gradient_steps import OurStep, nonprivate_step
from benchmarks.measure import interleaved, median, time_ratio
from tests.support.processors import KINDS, environment

MODELS = ("softmax-256", "small-256", "mlp-256", "cnn-256", "lr-256")

GOALS = {"avx2": 1.3, "compatible": 1.3, "generic": 3.0}
"""The most that a step's ratio may be, in those of a processor with AVX-512."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One model on one kind.

    Attributes:
        method: how its gradients are computed.
        milliseconds: of our step.
        ratio: its time in those of the step without privacy.
    """

    method: str
    milliseconds: float
    ratio: float


def measured(model: str, rounds: int) -> Figures:
    """A model in this process."""
    device = torch.device("cpu")
    asked = problem(model, device)
    ours = OurStep(asked)
    times = interleaved({"ours": ours, "nonprivate": nonprivate_step(asked)}, rounds, (), device)
    return Figures(ours.method, 1e3 * median(times["ours"]), time_ratio(times, "ours", "nonprivate"))


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
            table.add_row(model, kind, one.method, f"{one.milliseconds:.2f}", f"{one.ratio:.1f}", shown)
    return table


def main() -> None:
    """Measure every kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--here", action="store_true", help="measure in this process, as it is, and print JSON")
    options = parser.parse_args()
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
