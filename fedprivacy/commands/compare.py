"""`fedprivacy compare`: runs beside one another, in the terminal and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from fedprivacy._support.console import figure_columns, text_columns
from fedprivacy.commands.terminal import OUT, Json, Quiet, plain_errors, print_json

if TYPE_CHECKING:
    from fedprivacy.runs.records.comparison import Comparison


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
    OUT.print(_table(compared))
    if compared.differing:
        OUT.print(_differing(compared))
    for caution in compared.cautions:
        OUT.print(f"[yellow]{escape(caution)}")
    others = [name for name in main_metrics(compared.metrics) if name != compared.metric]
    also = f"Also measured: {escape(', '.join(others))} (--metric).\n" if others else ""
    OUT.print(f"\n[bold]{escape(compared.in_words())}[/].\n{also}Report: {escape(str(report))}", highlight=False)


def _table(compared: Comparison) -> Table:
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


def _differing(compared: Comparison) -> Table:
    """Settings in which the runs differ: a row for each setting, a column for each run."""
    values = [Column(escape(row["run"]), overflow="fold", justify="right") for row in compared.rows]
    table = Table(*text_columns("setting"), *values, title="Settings that differ", title_justify="left")
    for key, of_runs in compared.differing.items():
        table.add_row(key, *map(escape, of_runs))
    return table
