"""Many runs beside one another: their settings and metrics as a table and in figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from pydantic import WithJsonSchema

from fedprivacy._support.settings import ConfigError
from fedprivacy.dashboard import presentation
from fedprivacy.dashboard.api import NOTHING_YET, Limit, Offset, Runs, Words, one_of
from fedprivacy.dashboard.drawings import AS_CSV, Theme, Width, csv_of, drawing, with_theme
from fedprivacy.figures.named import RUNS_FIGURES, RunsOptions
from fedprivacy.runs.records.catalogue import RunFilter, row_of, sort_rows
from fedprivacy.runs.settings.configuration import NAMING, PLACES, differing_settings
from fedprivacy.values.metrics import main_metrics, measured_names
from fedprivacy.values.numbers import or_infinite
from fedprivacy.values.wording import NO_PRIVACY, epsilon_text, metric_text

experiments = APIRouter(tags=["runs"])

Name = Annotated[str, Query(min_length=1, max_length=200)]

_MOST = 500
"""Maximum number of runs in a figure, the first by the order."""


def select_runs(
    catalogue: Runs, search: Words = "", tag: Words = "", task: Words = "", sort: Words = "started"
) -> list[dict[str, Any]]:
    """Return the rows of the selected runs, in order. Raises HTTPException: 409, they cannot be sorted like that."""
    wanted = RunFilter(task, tag, search=search)
    rows = [row for row in map(row_of, catalogue.listing().runs) if wanted.takes(row)]
    try:
        return sort_rows(rows, sort)
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error


Selected = Annotated[list[dict[str, Any]], Depends(select_runs)]


def options(rows: Selected, x: Name, y: Name, colour: Words = "") -> RunsOptions:
    """Return the options of a figure of the selected runs."""
    return RunsOptions(x, y, colour, _differing(rows))


Options = Annotated[RunsOptions, Depends(options)]
FigureName = Annotated[
    str, one_of(RUNS_FIGURES, "figure"), WithJsonSchema({"type": "string", "enum": list(RUNS_FIGURES)})
]


@experiments.get("/experiments", responses=NOTHING_YET)
def table(rows: Selected, limit: Limit = 50, offset: Offset = 0) -> presentation.Experiments:
    """List runs with their settings and everything that they measured."""
    metrics = measured_names(row["metrics"] for row in rows)
    return presentation.Experiments(
        total=len(rows),
        runs=[_body(row) for row in rows[offset : offset + limit]],
        differing=_differing(rows),
        metrics=metrics,
        main=main_metrics(metrics),
        figures=[
            presentation.FigureBody(name=n, title=each.title, about=each.about) for n, each in RUNS_FIGURES.items()
        ],
    )


@experiments.get("/experiments/figures/{name}.csv", responses=NOTHING_YET | AS_CSV, response_class=Response)
def numbers(rows: Selected, name: FigureName, options: Options) -> Response:
    """Get the numbers behind a figure of many runs as CSV."""
    return csv_of(RUNS_FIGURES[name].rows(rows, options), f"runs-{name}")


@experiments.get("/experiments/figures/{name}", responses=NOTHING_YET)
def figure(
    rows: Selected, name: FigureName, options: Options, width: Width = 440, theme: Theme = Theme.LIGHT
) -> dict[str, Any]:
    """Get a figure of many runs as Vega-Lite, its data inside."""
    with drawing():
        chart = RUNS_FIGURES[name].draw(rows[:_MOST], options, width)
    return with_theme(chart, theme)


def _differing(rows: Iterable[dict[str, Any]]) -> list[str]:
    return differing_settings([row["settings"] for row in rows], ignored=(*NAMING, *PLACES))


def _body(row: dict[str, Any]) -> presentation.ExperimentBody:
    private = row["settings"].get("privacy") is not False
    texts = {name: metric_text(name, value) for name, value in row["metrics"].items()}
    spent = epsilon_text(or_infinite(row["epsilon"])) if row["rounds"] else "not yet"
    return presentation.ExperimentBody(**row, metric_texts=texts, epsilon_text=spent if private else NO_PRIVACY)
