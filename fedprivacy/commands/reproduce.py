"""`fedprivacy reproduce`: a paper's experiment over several seeds, and a table of what came out beside its figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
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
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many seeds at a time, each in a process. Default: one for each core.", show_default=False
        ),
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
            several = min(jobs or os.cpu_count() or 1, len(left))
            with _bar(quiet=as_json) as bar:
                seeds_left = _Left(chosen, left, files, folder, bar)
                found = [
                    *kept,
                    *(seeds_left.one_by_one() if several == 1 else seeds_left.together(REPRODUCTIONS[name], several)),
                ]
        results = Results(chosen, sorted(found, key=lambda result: result.seed))
        written = [results.save(folder), *_draw(results, folder)]
    if as_json:
        print_json(results.summary() | {"out": str(folder)})
    else:
        OUT.print(_table(results))
        OUT.print(_measured(results), highlight=False)
        OUT.print(_last_words(results, written), highlight=False)
    if not results.met:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Left:
    """Seeds that are to be measured, with a bar that shows it."""

    reproduction: Reproduction
    seeds: Sequence[int]
    data: Path
    out: Path
    bar: Progress

    def one_by_one(self) -> list[SeedResult]:
        """In this process."""
        from fedprivacy.reproductions.bench import measure

        found: list[SeedResult] = []
        task, rows = self._task()

        def tell(words: str) -> None:
            self.bar.update(task, description=f"seed {self.seeds[len(found)]}: {escape(words)}")

        def advance(done: int) -> None:
            self.bar.update(task, completed=len(found) * rows + done)

        with _said_if_stopped():
            for seed in self.seeds:
                found.append(measure(self.reproduction, seed, self.data, self.out, tell=tell, advance=advance))
        return found

    def together(self, source: str, jobs: int) -> list[SeedResult]:
        """Several at a time."""
        from fedprivacy.reproductions.jobs import News, SeedProcesses

        found: list[SeedResult] = []
        task, rows = self._task()
        done = dict.fromkeys(self.seeds, 0)
        with _said_if_stopped(), SeedProcesses(source, self.data, self.out, jobs) as processes:
            for told in processes.measured(self.seeds):
                if isinstance(told, News):
                    done[told.seed] = told.rows
                    self.bar.update(task, description=f"seed {told.seed}: {escape(told.words)}")
                else:
                    done[told.seed] = rows
                    found.append(told)
                self.bar.update(task, completed=sum(done.values()))
        return found

    def _task(self) -> tuple[TaskID, int]:
        """The bar's task, and how many rows a seed has."""
        rows = len(self.reproduction.rows)
        return self.bar.add_task("", total=len(self.seeds) * rows), rows


@contextmanager
def _said_if_stopped() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        ERR.print("Stopped. Finished seeds are kept: the same command goes on with the others.")
        raise


def _bar(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("[bold]figure"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, quiet=quiet),
    )


def _draw(results: Results, out: Path) -> Iterator[Path]:
    """Write the figures, and say where each was written: every row, and where rows make lines over budgets, these."""
    from fedprivacy._support.durable import write_durably
    from fedprivacy.figures import to_svg
    from fedprivacy.figures.budgets import budgets_figure, has_lines
    from fedprivacy.figures.reproduction import reproduction_figure
    from fedprivacy.figures.style import for_both_themes
    from fedprivacy.reproductions.results import BUDGETS, FIGURE

    about, rows = results.reproduction, [row.drawn for row in results.rows]
    figures = {FIGURE: reproduction_figure(about.title, rows)}
    if has_lines(rows):
        figures[BUDGETS] = budgets_figure(about.title, about.rows[0].what.partition(",")[0], rows)
    for name, figure in figures.items():
        write_durably(out / name, for_both_themes(to_svg(figure)).encode())
        yield out / name


_COLOURS = {"met": "green", "not met": "red", "recorded": "dim"}


def _table(results: Results) -> Table:
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


def _measured(results: Results) -> str:
    """What the figures are, each with the rows that hold it, and whose they are."""
    names: dict[str, list[str]] = {}
    for row in results.reproduction.rows:
        names.setdefault(row.what, []).append(row.name)
    about = results.reproduction
    figures = (f"{escape(what)}: [dim]{escape('; '.join(rows))}[/]" for what, rows in names.items())
    return "\n".join([*figures, f"\n{escape(about.source)}. Delta {about.delta:g}."])


def _cells(row: RowResult) -> list[str]:
    from fedprivacy.values.wording import NO_PRIVACY, epsilon_text

    return [
        escape(row.row.name),
        _number(row.row.published),
        _number(row.row.goal),
        _number(row.mean),
        "-" if row.standard_error is None else f"{row.standard_error:.2g}",
        NO_PRIVACY if row.epsilon is None else epsilon_text(row.epsilon),
        f"[{_COLOURS[row.verdict]}]{row.verdict}[/]",
        f"{row.seconds:.0f} s",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _last_words(results: Results, written: Sequence[Path]) -> str:
    from fedprivacy.values.wording import count_text

    files = ", ".join(escape(str(path)) for path in written)
    seeds = count_text(len(results.seeds), "seed")
    return f"\nMean over {seeds}, {results.seconds:.0f} s in all; a row's time is that of one seed.\nWritten: {files}"
