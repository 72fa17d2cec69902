"""`python -m simulations.reproduce NAME`: a paper's experiment over several seeds, and a table beside its figures."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulations.reproduce import REPRODUCTIONS, ReproductionError
from simulations.reproduce import reproduce as reproduced
from simulations.reproduce.figures import NO_PRIVACY, beside_text, seeds_text
from simulations.reproduce.results import ReproductionResults, RowResult

OUT = Console(emoji=False)
ERR = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run a paper's experiment over several seeds, and compare what came out with what was published.

    Seeds that are finished are kept: the same command goes on with those that are left. Exit code 1: a goal is not
    met; 2: it cannot be run, for example because data files are missing.
    """
    with _ended_in_order():
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
        print(json.dumps(results.summary() | {"out": str(results.out)}), flush=True)
    else:
        OUT.print(_table(results))
        OUT.print(_measured(results), highlight=False)
        OUT.print(_last_words(results), highlight=False)
    if not results.met:
        raise typer.Exit(1)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """End with 2 and a sentence if it cannot be run, and with 128 + the signal after Ctrl-C or SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (ReproductionError, OSError) as error:
        ERR.print(f"error: {error}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stopped:
        ERR.print("Stopped. Finished seeds are kept: the same command goes on with the others.")
        raise typer.Exit(128 + next(iter(stopped.args), signal.SIGINT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


_COLOURS = {"met": "green", "not met": "red", "recorded": "dim"}

_ASIDE = re.compile(r"^clients_records$|^each_.*_(least|most)$")
"""Pattern of the metrics that stand beside another: the number of records, and the extremes of clients."""


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
    if others := [name for name in results.metrics if name not in shown and not _ASIDE.search(name)]:
        figures.append(f"Also measured: {escape(', '.join(others))}; --metric shows another.")
    return "\n".join([*figures, f"\n{escape(about.source)}. Delta {about.delta:g}."])


def _cells(row: RowResult) -> list[str]:
    return [
        escape(row.row.name),
        _number(row.row.published),
        _number(row.row.goal),
        beside_text(row.mean, row.row.goal),
        "-" if row.standard_error is None else f"{row.standard_error:.2g}",
        NO_PRIVACY if row.epsilon is None else _rounded_up(row.epsilon),
        f"[{_COLOURS[row.verdict]}]{row.verdict}[/]",
        f"{row.seconds:.0f} s",
    ]


def _rounded_up(epsilon: float) -> str:
    if not math.isfinite(epsilon):
        return "∞"
    return f"{Decimal(repr(float(epsilon))).quantize(Decimal('0.01'), ROUND_CEILING)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _last_words(results: ReproductionResults) -> str:
    files = ", ".join(escape(str(path)) for path in results.files)
    seeds = seeds_text(len(results.seeds))
    return f"\nMean over {seeds}, {results.seconds:.0f} s in all; a row's time is that of one seed.\nWritten: {files}"


if __name__ == "__main__":
    app(prog_name="python -m simulations.reproduce")
