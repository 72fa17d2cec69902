"""`fedprivacy reproduce`: a paper's experiment over several seeds, and a table of what came out beside its figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from fedprivacy.commands.terminal import ERR, OUT, Json, ends_in_order, plain_errors, print_json
from fedprivacy.reproductions import REPRODUCTIONS

if TYPE_CHECKING:
    from fedprivacy.reproductions.results import ReproductionResults, RowResult


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help=f"Which one: {', '.join(REPRODUCTIONS)}, or path/to/file.py:name.", metavar="NAME", show_default=False
        ),
    ],
    *,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many, from 0 on. Default: the reproduction's own.", show_default=False),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data files that it needs.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results. Default: runs/reproduce-NAME.", show_default=False)
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many seeds at a time, each in a process. Default: one for each core.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of the table and the figures, any that the runs measured. Default: each row's own.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a paper's experiment over several seeds, and compare what came out with what was published.

    Seeds that are finished are kept: the same command goes on with those that are left. Exit code 1: a goal is not
    met; 2: it cannot be run, for example because data files are missing.
    """
    from fedprivacy.reproductions.experiment import ReproductionError
    from fedprivacy.reproductions.reproduction import reproduce as reproduced
    from fedprivacy.runs.records.folder import RunFolderError

    with ends_in_order(), plain_errors(ReproductionError, RunFolderError, OSError, code=2), _said_if_stopped():
        results = reproduced(
            name,
            seeds=seeds,
            data=data,
            out=out,
            jobs=jobs or os.cpu_count() or 1,
            metric=metric,
            progress=not as_json,
        )
    if as_json:
        print_json(results.summary() | {"out": str(results.out)})
    else:
        OUT.print(_table(results))
        OUT.print(_measured(results), highlight=False)
        OUT.print(_last_words(results), highlight=False)
    if not results.met:
        raise typer.Exit(1)


@contextmanager
def _said_if_stopped() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        ERR.print("Stopped. Finished seeds are kept: the same command goes on with the others.")
        raise


_COLOURS = {"met": "green", "not met": "red", "recorded": "dim"}


def _table(results: ReproductionResults) -> Table:
    """A line for each row, that fits into a terminal of 80 columns."""
    about = results.reproduction
    table = Table(title=escape(about.title), box=box.SIMPLE_HEAD, padding=0)
    table.add_column("row", overflow="fold")
    for column in ("paper", "goal", "ours", "± s.e.", "epsilon"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for row in results.rows:
        table.add_row(*_cells(row))
    return table


def _measured(results: ReproductionResults) -> str:
    """The kinds of figures, each with the rows that hold it, whose they are, and what else was measured."""
    from fedprivacy.values.metrics import main_metrics

    names: dict[str, list[str]] = {}
    for found in results.rows:
        names.setdefault(found.row.what, []).append(found.row.name)
    about = results.reproduction
    figures = [f"{escape(what)}: [dim]{escape('; '.join(rows))}[/]" for what, rows in names.items()]
    if any(found.row not in about.rows for found in results.rows):
        figures.append("Goals and the paper's figures are of the rows' own metrics, shown without --metric.")
    if results.left_out:
        figures.append(f"Not measured: [dim]{escape('; '.join(results.left_out))}[/]")
    shown = {found.row.metric for found in results.rows}
    if others := [name for name in main_metrics(results.metrics) if name not in shown]:
        figures.append(f"Also measured: {escape(', '.join(others))}; --metric shows another.")
    return "\n".join([*figures, f"\n{escape(about.source)}. Delta {about.delta:g}."])


def _cells(row: RowResult) -> list[str]:
    from fedprivacy.values.wording import NO_PRIVACY, beside_text, epsilon_text

    return [
        escape(row.row.name),
        _number(row.row.published),
        _number(row.row.goal),
        beside_text(row.mean, row.row.goal),
        "-" if row.standard_error is None else f"{row.standard_error:.2g}",
        NO_PRIVACY if row.epsilon is None else epsilon_text(row.epsilon),
        f"[{_COLOURS[row.verdict]}]{row.verdict}[/]",
        f"{row.seconds:.0f} s",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _last_words(results: ReproductionResults) -> str:
    from fedprivacy.values.wording import count_text

    files = ", ".join(escape(str(path)) for path in results.files)
    seeds = count_text(len(results.seeds), "seed")
    return f"\nMean over {seeds}, {results.seconds:.0f} s in all; a row's time is that of one seed.\nWritten: {files}"
