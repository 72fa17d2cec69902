"""`fedprivacy runs`: what was run, found and sorted by tags, settings and metrics; rounds, errors, runs to remove."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Column, Table

from fedprivacy._support.console import text_columns
from fedprivacy.commands.mistyped import Commands
from fedprivacy.commands.terminal import OUT, PLAIN, Json, plain_errors, print_json
from fedprivacy.runs.settings.configuration import RUNS

runs_app = Commands(help="List, filter and sort runs, print their rounds, show the last error, remove runs.")

_MOST = 30
"""Maximum number of runs that are listed unless more are asked for."""

_COLOURS = {"finished": "green", "running": "cyan", "stopped": "yellow", "failed": "red"}


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
    from fedprivacy.runs.records.listing import list_runs
    from fedprivacy.runs.settings.configuration import ConfigError

    with plain_errors(ConfigError, LedgerError, code=2):
        pairs = _pairs(setting or ())
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


def _pairs(typed: Sequence[str]) -> dict[str, str]:
    from fedprivacy.runs.settings.configuration import ConfigError

    if wrong := [text for text in typed if "=" not in text[1:]]:
        raise ConfigError([f"setting is '{text}'; give KEY=VALUE, for example epsilon=1." for text in wrong])
    return dict(text.split("=", 1) for text in typed)


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
