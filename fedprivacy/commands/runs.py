"""`fedprivacy runs`, `compare` and `sweep`: what people do with many runs.

`runs` lists and removes them and shows one's rounds or error, `compare` puts several side by side, and `sweep` makes a
run of each combination of settings, with a table of what came out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedprivacy._support.console import figure_columns, text_columns
from fedprivacy.commands.mistyped import Commands
from fedprivacy.commands.terminal import ERR, OUT, PLAIN, Json, Quiet, as_typed, plain_errors, print_error, print_json
from fedprivacy.runs.settings.configuration import RUNS

if TYPE_CHECKING:
    from fedprivacy.runs.records.comparison import Comparison
    from fedprivacy.runs.records.grid import SweepGrid, SweepResults

runs_app = Commands(help="List, filter and sort runs, print their rounds, show the last error, remove runs.")

_MOST = 30
"""Maximum number of runs that are listed unless more are asked for."""

_COLOURS = {"finished": "green", "running": "cyan", "stopped": "yellow", "failed": "red"}

_CAUTION = (
    "Choosing settings by what they reach on private records spends privacy that no run's epsilon counts: "
    "docs/how-to/sweep.md says what to do about it."
)

_SAME_RATE = (
    "The baseline has the private learning rate, so that part of the difference may be a bad step size: "
    "--baseline-learning-rates 0.1,0.3,1 tries others.\n"
)


@runs_app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    *,
    store: Annotated[
        list[str] | None,
        typer.Option(help="Folder of runs, or a ledger; several times for several. Default: runs, and deployments."),
    ] = None,
    task: Annotated[str, typer.Option(help="Only runs of this task.")] = "",
    tag: Annotated[str, typer.Option(help="Only runs with this tag (simulate --tags).")] = "",
    status: Annotated[str, typer.Option(help="Only runs that are running, finished, stopped or failed.")] = "",
    setting: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only runs with this setting, as in epsilon=1.")
    ] = None,
    sort: Annotated[str, typer.Option(help="Column, metric or setting: the best or the largest first.")] = "started",
    most: Annotated[int, typer.Option(min=1, help="How many are listed.")] = _MOST,
    as_json: Json = False,
) -> None:
    """List runs, the newest first."""
    if context.invoked_subcommand:
        return
    from fedprivacy.ledger import LedgerError
    from fedprivacy.runs.records.catalogue import list_runs
    from fedprivacy.runs.settings.configuration import ConfigError

    with plain_errors(ConfigError, LedgerError, code=2):
        if wrong := [text for text in setting or () if "=" not in text[1:]]:
            raise ConfigError([f"setting is '{text}'; give KEY=VALUE, for example epsilon=1." for text in wrong])
        pairs = dict(text.split("=", 1) for text in setting or ())
        rows = list_runs(*store or (), task=task, tag=tag, status=status, settings=pairs, sort=sort)
    if as_json:
        print_json({"total": len(rows), "runs": list(rows[:most]), "problems": rows.problems})
        return
    if not rows and rows.problems:
        raise typer.Exit(2)
    if not rows:
        OUT.print("No such run. 'fedprivacy simulate' makes one; --store names another folder.", highlight=False)
        return
    OUT.print(_table(rows[:most], sort))
    if len(rows) > most:
        OUT.print(f"{len(rows) - most} more: --most {len(rows)}.", highlight=False)
    OUT.print("Side by side: fedprivacy compare RUN RUN. In a browser: fedprivacy dashboard.", highlight=False)


@runs_app.command()
def error(
    place: Annotated[Path, typer.Argument(help="Folder of runs, or of one run.", metavar="FOLDER")] = Path(RUNS),
) -> None:
    """Show why the last run that failed did so, with where in the code the error came from."""
    from fedprivacy.runs.records.folder import RunFolderError
    from fedprivacy.runs.records.removal import last_error

    with plain_errors(RunFolderError, code=2):
        folder, text = last_error(str(place))
    PLAIN.print(f"{folder}\n{text}", end="")


@runs_app.command()
def export(folder: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")]) -> None:
    """Print a run's rounds, each as a line of JSON: first the state before the first, then what each has changed."""
    from fedprivacy.runs.records.folder import RunFolderError, read_lines

    with plain_errors(RunFolderError, code=2):
        if not (lines := read_lines(folder)):
            raise RunFolderError(f"'{folder}' holds no run; name a folder that a run wrote to (out).")
    for line in lines:
        typer.echo(line)


@runs_app.command()
def remove(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN ...")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete runs with everything in their folders. Charges in a ledger elsewhere stay."""
    from fedprivacy.runs.records.folder import RunFolderError
    from fedprivacy.runs.records.removal import remove_runs

    if not yes:
        typer.confirm(f"Delete {', '.join(map(str, folders))} for ever?", abort=True)
    with plain_errors(RunFolderError, code=2):
        remove_runs(folders)
    for folder in folders:
        OUT.print(f"Removed {escape(str(folder))}.", highlight=False)


def _table(rows: Sequence[dict[str, Any]], sort: str) -> Table:
    """A row for each run; what it is sorted by has a column, and else tags where a run has some."""
    from fedprivacy.values.wording import NO_PRIVACY, epsilon_text, metric_name, metric_text

    usual = {"run", "task", "status", "started", "rounds", "epsilon"}
    metrics = {sort} if any(sort in row["metrics"] for row in rows) else {row["metric"] for row in rows}
    extra = [sort] * (sort not in usual | metrics)
    tagged = not extra and any(row["tags"] for row in rows)
    measured = "metric" if len(metrics) > 1 else metric_name(next(iter(metrics)))
    right = [Column(each, overflow="fold", justify="right") for each in (*extra, "rounds", "epsilon", measured)]
    columns = *text_columns("run", "task", "status", *["tags"] * tagged), *right
    table = Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # room for names in 80 columns
    for row in rows:
        shown = sort if sort in metrics else row["metric"]
        value = metric_text(shown, row["metrics"].get(shown))
        private = row["settings"].get("privacy") is not False
        table.add_row(
            escape(row["folder"] or row["run"]),
            escape(row["task"]),
            f"[{_COLOURS[row['status']]}]{row['status']}",
            *[escape(", ".join(row["tags"]))] * tagged,
            *[escape(str(row["settings"].get(key))) for key in extra],
            str(row["rounds"]) + f" of {row['rounds_planned']}" * (row["rounds"] != row["rounds_planned"]),
            NO_PRIVACY if not private else "-" if row["epsilon"] is None else epsilon_text(row["epsilon"]),
            value if len(metrics) == 1 else f"{metric_name(shown)} {value}",
        )
    return table


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of 2 to 8 runs.", metavar="RUN RUN ...")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder for compare.html. Default: the first new runs/comparison-N.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to compare. Default: the first run's, or the first that all measured.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare runs: what each reached and spent, how they differ, and what privacy cost beside a baseline."""
    from fedprivacy.runs.records import comparison
    from fedprivacy.runs.records.folder import RunFolderError, check_writable, new_run_folder
    from fedprivacy.values.metrics import main_metrics

    with plain_errors(RunFolderError, code=2):
        compared = comparison.compare(*runs, metric=metric)
        folder = out or Path(new_run_folder("comparison"))
        check_writable(folder)
        report = compared.save(folder)
    if as_json:
        print_json(compared.summary() | {"report": str(report)})
        return
    if quiet:
        OUT.print(escape(compared.in_words()), highlight=False, soft_wrap=True)
        return
    OUT.print(_comparison_table(compared))
    if compared.differing:
        values = [Column(escape(row["run"]), overflow="fold", justify="right") for row in compared.rows]
        table = Table(*text_columns("setting"), *values, title="Settings that differ", title_justify="left")
        for key, of_runs in compared.differing.items():
            table.add_row(key, *map(escape, of_runs))
        OUT.print(table)
    for caution in compared.cautions:
        OUT.print(f"[yellow]{escape(caution)}")
    others = [name for name in main_metrics(compared.metrics) if name != compared.metric]
    also = f"Also measured: {escape(', '.join(others))} (--metric).\n" if others else ""
    OUT.print(f"\n[bold]{escape(compared.in_words())}[/].\n{also}Report: {escape(str(report))}", highlight=False)


def _comparison_table(compared: Comparison) -> Table:
    """A row for each run, with room for its name in 80 columns: what all runs share has no column."""
    from fedprivacy.values.wording import metric_name, metric_text

    metric = compared.metric
    costed = any(row["cost"] is not None for row in compared.rows)
    seeded = len({row["seed"] for row in compared.rows}) > 1
    reached = figure_columns(metric_name(metric), "best", "rounds", "epsilon", *["seed"] * seeded, *["cost"] * costed)
    caption = "Epsilon: the largest of a client, server's view, PLD accountant."
    table = Table(*text_columns("run"), *reached, caption=caption)
    for row in compared.rows:
        best = "-" if row["best"] is None else f"{metric_text(metric, row['best'])} in {row['best_round']}"
        table.add_row(
            escape(row["run"]),
            metric_text(metric, row["final"]),
            best,
            str(row["rounds"]),
            compared.epsilon_text(row),
            *["secret" if row["seed"] is None else str(row["seed"])] * seeded,
            *[compared.cost_text(row["cost"])] * costed,
        )
    return table


def run_sweep(grid: SweepGrid, metric: str | None, jobs: int, *, quiet: bool, as_json: bool) -> None:
    """Run a sweep and show its results; see the command's help."""
    from fedprivacy.runs.records.grid import SweepResults
    from fedprivacy.simulation.sweeps import LOG, run_grid

    finished = sum(run.finished for run in grid.runs)
    began = time.monotonic()
    try:
        failed = run_grid(grid, jobs, Console(stderr=True, emoji=False, quiet=as_json or quiet), metric)
    except KeyboardInterrupt:
        ERR.print("Stopped. The same command goes on where this one was.")
        raise typer.Exit(130) from None
    results = SweepResults(grid, metric)
    written = results.save()
    if as_json:
        told = {"metric": results.metric, "metrics": results.metrics}
        rows = {"combinations": list(results.combinations), "runs": list(results.runs)}
        print_json(told | rows | {"failed": failed, "out": str(grid.out)})
    else:
        OUT.print(_sweep_table(results.combinations, grid.swept, results.metric))
    if not (as_json or quiet):
        ran, seconds = len(grid.runs) - finished, time.monotonic() - began
        OUT.print(_last_words(ran, seconds, results, written), highlight=False)
        where = f"{escape(as_typed())} dashboard --store {escape(str(grid.out))}"
        OUT.print(f"Every run, in a browser: [bold]{where}[/]", highlight=False, soft_wrap=True)
    for name, failure in failed.items():
        print_error("failed", f"{name}: {failure}")
    if failed:
        ERR.print(f"The same command tries again. Warnings of other processes: {grid.out / LOG}.")
        raise typer.Exit(1)


def _sweep_table(rows: Sequence[dict[str, Any]], swept: Sequence[str], metric: str) -> Table:
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
    same_rate = _SAME_RATE if results.grid.baseline and "learning-rate" not in results.grid.swept else ""
    return f"\n{ran} runs in {seconds:.0f} s{skipped}.\n{also}{_CAUTION}\n{same_rate}Written: {files}"
