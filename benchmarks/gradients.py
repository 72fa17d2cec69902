"""What a private gradient costs: time and memory of one training step, against Opacus and against no privacy.

    python -m benchmarks.gradients [--json] [--models cnn-64,mlp-256] [--rounds 5] [--max-memory MB]
                                   [--device cuda] [--autocast bfloat16] [--save] [--lines FILE]
    python -m benchmarks.gradients --where [--json] [--models lr-256,mlp-256] [--rounds 5]

Every contender takes the same step on the same fixed batch: gradients of a cross-entropy, clipped to one norm, summed,
noise, plain SGD. Ours adds the mechanism's noise; Opacus, in each of its modes, adds its default noise; the non-private
step neither clips nor adds noise. With --autocast, ours computes activations in bfloat16, and the others as before. All
take turns in one process, on one thread. `benchmarks.measure` says what is counted. Needs the `bench` extra.

With --where, the parts of our step instead, as a client takes it: `benchmarks.where` says what each of them is. With
--lines, each model's figures are appended to a file as soon as they are measured, and a model that fails does not end
the others.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import where
from benchmarks.gradient_models import NAMES, Problem, problem
from benchmarks.gradient_steps import OurStep, nonprivate_step
from benchmarks.lines import tell
from benchmarks.measure import Step, interleaved, median, nothing, peak_bytes, time_ratio
from benchmarks.noise import noise_ratio
from benchmarks.peers_opacus import DEFAULT, MODES, opacus_step
from fedprivacy._support.native import keep_freed_memory

OURS, CHUNKED, NONPRIVATE = "ours", "chunked", "nonprivate"

TIME_GOALS = {
    "lr": (0.15, 0.7),
    "mlp": (0.3, 0.85),
    "cnn": (0.45, 0.8),
    "resnet": (0.66, 1.3),
    "wrn": (0.7, 1.5),
    "transformer-256": (0.45, 1.2),
}
"""The most that our step may take, over Opacus' best mode and over the non-private step, on one CPU thread."""

MEMORY_GOAL = 1 / 3
"""The most memory that our step may take, over Opacus' default mode."""

CHUNKED_MEMORY_GOAL = 1.1
"""The most memory that our step may take in chunks, over the non-private step."""

_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Figures:
    """One model's figures: medians of time, peaks of memory. None where a contender fails.

    Attributes:
        time_vs_opacus_best: our time over that of Opacus' quickest mode.
        time_vs_nonprivate: our time over that of the non-private step.
        memory_vs_opacus_default: our memory over that of Opacus' default mode.
        memory_vs_nonprivate: our memory over that of the non-private step.
        engine: how ours computes gradients.
        ms: our time.
        nonprivate_ms: time of the non-private step.
        opacus_ms: time of each of Opacus' modes.
        opacus_best: the quickest of them.
        opacus_errors: why a mode fails.
        memory_mb: memory of each contender.
        chunked: our step within --max-memory: its time, and time and memory over those of the non-private step.
    """

    time_vs_opacus_best: float | None
    time_vs_nonprivate: float
    memory_vs_opacus_default: float | None
    memory_vs_nonprivate: float
    engine: str
    ms: float
    nonprivate_ms: float
    opacus_ms: dict[str, float | None]
    opacus_best: str | None
    opacus_errors: dict[str, str]
    memory_mb: dict[str, float | None]
    chunked: dict[str, float] | None


def measure(problem: Problem, rounds: int, max_memory: str | None, autocast: torch.dtype | None = None) -> Figures:
    """Measure every contender on one problem.

    Args:
        problem: model and batch.
        rounds: turns of each contender.
        max_memory: MB that a chunked contender may use, or "nonprivate"; None for no such contender.
        autocast: of our step; None: float32.
    """
    parameter_bytes = sum(p.nbytes for p in problem.build().parameters())
    builds: dict[str, Callable[[], Step]] = {NONPRIVATE: partial(nonprivate_step, problem)}
    builds[OURS] = partial(OurStep, problem, autocast=autocast)
    builds |= {mode: partial(opacus_step, problem, mode) for mode in MODES}
    if max_memory is not None:
        peak = peak_bytes(builds[NONPRIVATE], parameter_bytes, problem.device)
        limit = peak if max_memory == NONPRIVATE else int(float(max_memory) * _MEGABYTE)
        builds[CHUNKED] = partial(OurStep, problem, limit)
    steps, errors = _working(builds)
    ours = steps[OURS]
    assert isinstance(ours, OurStep)
    memory = {name: peak_bytes(builds[name], parameter_bytes, problem.device) / _MEGABYTE for name in steps}
    times = interleaved(steps, rounds, MODES, problem.device)
    ms = {name: 1000.0 * median(seconds) for name, seconds in times.items()}
    best = min((mode for mode in MODES if mode in ms), key=ms.__getitem__, default=None)
    return Figures(
        time_vs_opacus_best=time_ratio(times, OURS, best) if best else None,
        time_vs_nonprivate=time_ratio(times, OURS, NONPRIVATE),
        memory_vs_opacus_default=memory[OURS] / memory[DEFAULT] if DEFAULT in memory else None,
        memory_vs_nonprivate=memory[OURS] / memory[NONPRIVATE],
        engine=ours.method,
        ms=ms[OURS],
        nonprivate_ms=ms[NONPRIVATE],
        opacus_ms={mode: ms.get(mode) for mode in MODES},
        opacus_best=best,
        opacus_errors=errors,
        memory_mb={name: memory.get(name) for name in builds},
        chunked=None
        if max_memory is None
        else {
            "ms": ms[CHUNKED],
            "time_vs_nonprivate": time_ratio(times, CHUNKED, NONPRIVATE),
            "memory_vs_nonprivate": memory[CHUNKED] / memory[NONPRIVATE],
        },
    )


def _working(builds: Mapping[str, Callable[[], Step]]) -> tuple[dict[str, Step], dict[str, str]]:
    """The contenders that manage a step, and why Opacus' others do not."""
    steps, errors = {}, {}
    for name, build in builds.items():
        try:
            step = build()
            step(nothing)
        except Exception as error:
            if name not in MODES:
                raise
            errors[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            steps[name] = step
    return steps, errors


@dataclass(frozen=True, slots=True)
class Check:
    """A ratio, None where there is nothing to compare with, and the most that it may be, None without a goal."""

    ratio: float | None
    goal: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None where that cannot be said."""
        return None if self.ratio is None or self.goal is None else self.ratio <= self.goal

    def __str__(self) -> str:
        if self.reached is None:
            return _number(self.ratio)
        comparison = "[green]{} <= {:.2f}" if self.reached else "[red]{} > {:.2f}"
        return comparison.format(_number(self.ratio), self.goal)


def checks(name: str, figures: Figures, device: torch.device) -> dict[str, Check]:
    """Our step's ratios, by the title of their column. Goals for times hold on a CPU."""
    goals = TIME_GOALS.get(name) or TIME_GOALS.get(name.rpartition("-")[0])
    vs_opacus, vs_nonprivate = goals if goals and device.type == "cpu" else (None, None)
    ratios = {
        "time /\nbest mode": Check(figures.time_vs_opacus_best, vs_opacus),
        "time /\nnon-priv.": Check(figures.time_vs_nonprivate, vs_nonprivate),
        "memory /\nhooks": Check(figures.memory_vs_opacus_default, MEMORY_GOAL),
        "memory /\nnon-priv.": Check(figures.memory_vs_nonprivate),
    }
    if figures.chunked:
        ratios["chunked time\n/ non-priv."] = Check(figures.chunked["time_vs_nonprivate"])
        ratios["chunked memory\n/ non-priv."] = Check(figures.chunked["memory_vs_nonprivate"], CHUNKED_MEMORY_GOAL)
    return ratios


def report(models: Mapping[str, Figures], device: torch.device, console: Console) -> None:
    """Print every model's figures, goals beside them, and how many goals are reached."""
    ratios = {name: checks(name, figures, device) for name, figures in models.items()}
    table = Table(
        *("model", "ours\nms", "ours\nMB", *MODES, *next(iter(ratios.values()))),
        box=box.SIMPLE_HEAD,
        caption=f"{', '.join(MODES)}: time of Opacus' modes / non-private time. Figures with <= or > have a goal.",
        caption_justify="left",
    )
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for name, figures in models.items():
        opacus = [ms and ms / figures.nonprivate_ms for ms in figures.opacus_ms.values()]
        numbers = [figures.ms, figures.memory_mb[OURS], *opacus]
        table.add_row(name, *map(_number, numbers), *map(str, ratios[name].values()))
    console.print(table)
    for name, figures in models.items():
        for mode, error in figures.opacus_errors.items():
            console.print(f"{name}: Opacus' mode {mode} fails: {error}", markup=False)
    verdicts = [check.reached for checked in ratios.values() for check in checked.values() if check.reached is not None]
    console.print(f"{sum(verdicts)} of {len(verdicts)} goals reached.")


def save(results: Mapping[str, Any], device_name: str) -> Path:
    """Write the results to benchmarks/results/<date>-<device>.json."""
    slug = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    path = Path(__file__).parent / "results" / f"{datetime.now(UTC).date()}-{slug}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU, one thread"


def main() -> int:
    """Measure, print, and save if asked to; 1: a model failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--models", default=",".join(NAMES), help="each a model and a batch size")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--max-memory", metavar="MB", help=f"measure our step in chunks, too; or '{NONPRIVATE}'")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--autocast", choices=["bfloat16"], help="type of our step's activations")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<date>-<device>.json")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="append each model's figures, as JSON")
    parser.add_argument("--where", action="store_true", help="the parts of our step on a CPU, without contenders")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every process that trains
    autocast = torch.bfloat16 if options.autocast else None
    device, progress = torch.device(options.device), Console(stderr=True)
    try:
        problems = [problem(name, device) for name in options.models.split(",")]
    except ValueError as error:
        parser.error(str(error))
    if options.where:
        breakdowns = {each.name: where.breakdown(each.name, options.rounds) for each in problems}
        if options.json:
            print(json.dumps({name: asdict(found) for name, found in breakdowns.items()}))
        else:
            where.report(breakdowns, Console(width=150))
        return 0
    models, failed = {}, {}
    for each in problems:
        progress.print(f"measuring {each.name}")
        try:
            models[each.name] = measure(each, options.rounds, options.max_memory, autocast)
        except Exception as error:
            if not options.lines:
                raise
            failed[each.name] = f"{type(error).__name__}: {error}"
            tell(options.lines, {"failed": {each.name: failed[each.name]}})
        else:
            tell(options.lines, {"models": {each.name: asdict(models[each.name])}})
    results = {
        "device": _device_name(device),
        "torch": torch.__version__,
        "models": {name: asdict(figures) for name, figures in models.items()},
        "noise_vs_torch_normal": noise_ratio(device),
    }
    tell(options.lines, {"noise_vs_torch_normal": results["noise_vs_torch_normal"]})
    if options.json:
        print(json.dumps(results))
    else:
        console = Console(width=max(Console().width, 150))
        report(models, device, console)
        console.print(f"Noise takes {results['noise_vs_torch_normal']:.2f} times as long as torch.normal_.")
    if options.save:
        progress.print(f"saved {save(results, _device_name(device))}")
    for name, why in failed.items():
        progress.print(f"{name} failed: {why}", markup=False)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
