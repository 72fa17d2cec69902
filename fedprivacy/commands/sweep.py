"""`fedprivacy sweep`: lists of settings, their product run by run, and a table of what came out."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedprivacy.commands.terminal import ERR, OUT, as_typed, print_json

CAUTION = (
    "Choosing settings by what they reach on private records spends privacy that no run's epsilon counts: "
    "docs/how-to/sweep.md says what to do about it."
)


def sweep(texts: dict[str, str], *, seeds: int, baseline: bool, jobs: int, out: Path, as_json: bool) -> None:
    """Run a sweep and show what came out; see the command's help."""
    from fedprivacy.flower.simulated.engine import quiet_flower
    from fedprivacy.runs.records.grid import SweepGrid, SweepResults, SweptRun
    from fedprivacy.runs.settings.device import choose_device
    from fedprivacy.server.strategies import build_strategy
    from fedprivacy.simulation.many_runs import LOG, run_all

    grid = SweepGrid.of(texts, seeds, out, baseline=baseline)
    plans = grid.check()
    for plan in plans:  # what a plan does not need, and a run fails without
        choose_device(plan.config.device)
        with quiet_flower():
            build_strategy(plan.config)
    metric = plans[0].task.metric
    out.mkdir(parents=True, exist_ok=True)
    left = [run for run in grid.runs if not run.finished]
    jobs = min(jobs or os.cpu_count() or 1, max(len(left), 1))
    failed: list[tuple[str, str]] = []
    began = time.monotonic()
    with _bar(quiet=as_json) as bar:
        task = bar.add_task("", total=len(grid.runs), completed=len(grid.runs) - len(left))

        def tell(run: SweptRun, failure: str) -> None:
            if failure:
                failed.append((run.folder.name, failure))
            bar.update(task, advance=1, description=escape(run.folder.name))

        try:
            run_all(left, jobs, out / LOG, tell)
        except KeyboardInterrupt:
            ERR.print("Stopped. The same command goes on where this one was.")
            raise typer.Exit(130) from None
    results = SweepResults(grid, metric)
    written = results.save()
    if as_json:
        told = {"metric": metric, "combinations": list(results.combinations), "runs": list(results.runs)}
        print_json(told | {"failed": dict(failed), "out": str(out)})
    else:
        OUT.print(_table(results.combinations, grid.swept, metric))
        seconds = time.monotonic() - began
        OUT.print(_last_words(len(left), len(grid.runs), seconds, written, out), highlight=False)
    for name, failure in failed:
        ERR.print(f"[red]failed:[/] {escape(name)}: {escape(failure)}")
    if failed:
        ERR.print(f"The same command tries again. More in {escape(str(out / LOG))}." if jobs > 1 else "")
        raise typer.Exit(1)


def _bar(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("[bold]run"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, quiet=quiet),
    )


def _table(rows: Sequence[dict[str, Any]], swept: Sequence[str], metric: str) -> Table:
    """A row for each combination."""
    from fedprivacy.values.nulls import or_infinite
    from fedprivacy.values.wording import NO_PRIVACY, epsilon_text, is_share, metric_name, metric_text

    percent = all(is_share(metric, row["mean"]) for row in rows if row["mean"] is not None)
    table = Table(caption="Mean and standard deviation over seeds, after the last round.")
    for column in (*swept, metric_name(metric), "deviation", "seeds", "epsilon spent"):
        table.add_column(column, justify="right")
    for row in rows:
        deviation = row["deviation"]
        spent = epsilon_text(or_infinite(row["epsilon_spent"]), _budget(row)) if row["privacy"] else NO_PRIVACY
        table.add_row(
            *("-" if row[key] is None else escape(str(row[key])) for key in swept),
            metric_text(metric, row["mean"]),
            "-" if deviation is None else f"{100 * deviation:.1f}" if percent else f"{deviation:.3g}",
            str(row["runs"]),
            spent,
        )
    return table


def _budget(row: dict[str, Any]) -> float:
    """The swept budget of a row, which its epsilon keeps."""
    return float(row.get("epsilon") or "inf")


def _last_words(ran: int, total: int, seconds: float, written: Sequence[Path], out: Path) -> str:
    skipped = f", {total - ran} were finished before" if ran < total else ""
    files = ", ".join(escape(str(path)) for path in written)
    return (
        f"\n{ran} runs in {seconds:.0f} s{skipped}.\n{CAUTION}\n"
        f"Written: {files}\nEvery run, in a browser: [bold]{escape(as_typed())} dashboard --store {escape(str(out))}[/]"
    )
