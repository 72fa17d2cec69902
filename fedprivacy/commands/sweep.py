"""`fedprivacy sweep`: lists of settings, their product run by run, and a table of what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedprivacy.commands.terminal import ERR, OUT, as_typed, print_error, print_json

if TYPE_CHECKING:
    from fedprivacy.runs.records.grid import SweepResults

CAUTION = (
    "Choosing settings by what they reach on private records spends privacy that no run's epsilon counts: "
    "docs/how-to/sweep.md says what to do about it."
)

SAME_RATE = (
    "The baseline has the private learning rate, so that part of the difference may be a bad step size: "
    "--baseline-learning-rates 0.1,0.3,1 tries others.\n"
)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of a sweep other than the settings of its runs."""

    out: Path
    seeds: int
    baseline: bool
    baseline_rates: str
    metric: str
    jobs: int


def sweep(texts: dict[str, str], given: SweepOptions, *, quiet: bool, as_json: bool) -> None:
    """Run a sweep and show its results; see the command's help."""
    from fedprivacy.runs.records.grid import SweepGrid, SweepResults
    from fedprivacy.simulation.sweeps import LOG, run_grid

    out = given.out
    grid = SweepGrid.of(texts, given.seeds, out, baseline=given.baseline, baseline_rates=given.baseline_rates)
    finished = sum(run.finished for run in grid.runs)
    began = time.monotonic()
    try:
        failed = run_grid(
            grid, given.jobs, Console(stderr=True, emoji=False, quiet=as_json or quiet), given.metric or None
        )
    except KeyboardInterrupt:
        ERR.print("Stopped. The same command goes on where this one was.")
        raise typer.Exit(130) from None
    results = SweepResults(grid, given.metric or None)
    written = results.save()
    if as_json:
        told = {"metric": results.metric, "metrics": results.metrics}
        rows = {"combinations": list(results.combinations), "runs": list(results.runs)}
        print_json(told | rows | {"failed": failed, "out": str(out)})
    else:
        OUT.print(_table(results.combinations, grid.swept, results.metric))
    if not (as_json or quiet):
        ran, seconds = len(grid.runs) - finished, time.monotonic() - began
        OUT.print(_last_words(ran, seconds, results, written), highlight=False)
        where = f"{escape(as_typed())} dashboard --store {escape(str(out))}"
        OUT.print(f"Every run, in a browser: [bold]{where}[/]", highlight=False, soft_wrap=True)
    for name, failure in failed.items():
        print_error("failed", f"{name}: {failure}")
    if failed:
        ERR.print(f"The same command tries again. Warnings of other processes: {out / LOG}.")
        raise typer.Exit(1)


def _table(rows: Sequence[dict[str, Any]], swept: Sequence[str], metric: str) -> Table:
    """A row for each combination."""
    from fedprivacy.runs.records.grid import DEVIATION
    from fedprivacy.values.numbers import or_infinite
    from fedprivacy.values.wording import NO_PRIVACY, epsilon_text, is_share, metric_name, metric_text

    means = [row.get(metric) for row in rows]
    percent = all(is_share(metric, mean) for mean in means if mean is not None)
    seeds = {row["runs"] for row in rows}
    several = ["deviation"] * (max(seeds, default=1) > 1)
    what = "Mean and standard deviation over seeds" if several else "One run of each"
    headings = *swept, metric_name(metric), *several, *["seeds"] * (len(seeds) > 1), "epsilon spent"
    columns = [Column(heading, justify="right", overflow="fold") for heading in headings]
    table = Table(*columns, caption=f"{what}, after the last round.")
    for row in rows:
        deviation = row.get(f"{metric}{DEVIATION}")
        spent = epsilon_text(or_infinite(row["epsilon_spent"]), _budget(row)) if row["privacy"] else NO_PRIVACY
        table.add_row(
            *("-" if row[key] is None else escape(str(row[key])) for key in swept),
            metric_text(metric, row.get(metric)),
            *["-" if deviation is None else f"{100 * deviation:.1f}" if percent else f"{deviation:.3g}"] * len(several),
            *[str(row["runs"])] * (len(seeds) > 1),
            spent,
        )
    return table


def _budget(row: dict[str, Any]) -> float:
    """The swept budget of a row, which its epsilon keeps."""
    return float(row.get("epsilon") or "inf")


def _last_words(ran: int, seconds: float, results: SweepResults, written: Sequence[Path]) -> str:
    from fedprivacy.values.metrics import main_metrics

    total = len(results.grid.runs)
    skipped = f", {total - ran} were finished before" if ran < total else ""
    others = [name for name in main_metrics(results.metrics) if name != results.metric]
    also = f"Also measured: {escape(', '.join(others))}; --metric shows another.\n" if others else ""
    files = ", ".join(escape(str(path)) for path in written)
    same_rate = results.grid.baseline and "learning-rate" not in results.grid.swept
    return (
        f"\n{ran} runs in {seconds:.0f} s{skipped}.\n{also}{CAUTION}\n{SAME_RATE if same_rate else ''}Written: {files}"
    )
