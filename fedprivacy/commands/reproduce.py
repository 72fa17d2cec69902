"""`fedprivacy reproduce`: a paper's experiment over several seeds, and a table of what came out beside its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedprivacy.commands.terminal import ERR, OUT, Json, ends_in_order, plain_errors, print_json
from fedprivacy.reproductions import REPRODUCTIONS
from fedprivacy.runs.configuration import RUNS

if TYPE_CHECKING:
    from fedprivacy.reproductions.protocol import Reproduction
    from fedprivacy.reproductions.results import Results, RowResult, SeedResult


def reproduce(
    name: Annotated[
        str, typer.Argument(help=f"Which one: {', '.join(REPRODUCTIONS)}.", metavar="NAME", show_default=False)
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
    as_json: Json = False,
) -> None:
    """Run a paper's experiment over several seeds, and compare what came out with what was published.

    Seeds that are finished are kept: the same command goes on with those that are left. Exit code 1: a goal is not
    met; 2: it cannot be run, for example because data files are missing.
    """
    from fedprivacy.reproductions.bench import data_folder, finished, reproduction_of
    from fedprivacy.reproductions.protocol import ReproductionError
    from fedprivacy.reproductions.results import Results

    with ends_in_order(), plain_errors(ReproductionError, OSError, code=2):
        chosen = reproduction_of(name)
        numbers = range(chosen.seeds if seeds is None else seeds)
        folder = out or Path(RUNS) / f"reproduce-{name}"
        kept = finished(chosen, numbers, folder)
        found = kept
        if left := [seed for seed in numbers if seed not in {result.seed for result in kept}]:
            files = data_folder(chosen, data)
            folder.mkdir(parents=True, exist_ok=True)
            found = [*kept, *_measure(chosen, left, files, folder, quiet=as_json)]
        results = Results(chosen, sorted(found, key=lambda result: result.seed))
        written = [results.save(folder), _draw(results, folder)]
    if as_json:
        print_json(results.summary() | {"out": str(folder)})
    else:
        OUT.print(_table(results))
        OUT.print(_last_words(results, written), highlight=False)
    if not results.met:
        raise typer.Exit(1)


def _measure(
    reproduction: Reproduction, seeds: Sequence[int], data: Path, out: Path, *, quiet: bool
) -> list[SeedResult]:
    """The results of seeds, with a bar."""
    from fedprivacy.reproductions.bench import measure

    found: list[SeedResult] = []
    with _bar(quiet=quiet) as bar:
        task = bar.add_task("", total=len(seeds) * len(reproduction.rows))

        def tell(words: str) -> None:
            bar.update(task, description=f"seed {seeds[len(found)]}: {escape(words)}")

        def advance(rows: int) -> None:
            bar.update(task, completed=len(found) * len(reproduction.rows) + rows)

        try:
            for seed in seeds:
                found.append(measure(reproduction, seed, data, out, tell=tell, advance=advance))
        except KeyboardInterrupt:
            ERR.print("Stopped. Finished seeds are kept: the same command goes on with the others.")
            raise
    return found


def _bar(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("[bold]figure"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, quiet=quiet),
    )


def _draw(results: Results, out: Path) -> Path:
    """Write the figure; where it was written."""
    from fedprivacy._support.durable import write_durably
    from fedprivacy.figures import to_svg
    from fedprivacy.figures.reproduction import reproduction_figure
    from fedprivacy.figures.style import for_both_themes
    from fedprivacy.reproductions.results import FIGURE

    figure = reproduction_figure(results.reproduction.title, [row.drawn for row in results.rows])
    write_durably(out / FIGURE, for_both_themes(to_svg(figure)).encode())
    return out / FIGURE


_COLOURS = {"met": "green", "not met": "red", "recorded": "dim"}


def _table(results: Results) -> Table:
    """A line for each row."""
    about = results.reproduction
    table = Table(title=f"{escape(about.title)}", caption=f"{escape(about.source)}. Delta {about.delta:g}.")
    table.add_column("row")
    for column in ("published", "goal", "ours", "± s.e.", "epsilon"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for row in results.rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: RowResult) -> list[str]:
    from fedprivacy.values.wording import NO_PRIVACY, epsilon_text

    return [
        f"{escape(row.row.name)}\n[dim]{escape(row.row.what)}[/]",
        _number(row.row.published),
        _number(row.row.goal),
        _number(row.mean),
        "-" if row.standard_error is None else f"{row.standard_error:.2g}",
        NO_PRIVACY if row.epsilon is None else epsilon_text(row.epsilon),
        f"[{_COLOURS[row.verdict]}]{row.verdict}[/]",
        f"{row.seconds:.0f}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _last_words(results: Results, written: Sequence[Path]) -> str:
    from fedprivacy.values.wording import count_text

    files = ", ".join(escape(str(path)) for path in written)
    seeds = count_text(len(results.seeds), "seed")
    return (
        f"\nMean over {seeds}, {results.seconds:.0f} s in all; a row's seconds are those of one seed.\nWritten: {files}"
    )
