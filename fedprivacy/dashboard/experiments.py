"""Many runs beside one another: their settings and metrics as a table, and a point for each in a figure."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response

from fedprivacy._support.settings import ConfigError
from fedprivacy.dashboard import models
from fedprivacy.dashboard.drawings import AS_CSV, Theme, Width, csv_of, drawing, themed
from fedprivacy.dashboard.lookup import NOTHING_YET, Runs, Words
from fedprivacy.figures.experiments import experiment_figure, experiment_rows
from fedprivacy.runs.records.listing import RunFilter, differing_settings, ordered, row_of
from fedprivacy.values.metrics import main_metrics, measured_names
from fedprivacy.values.nulls import or_infinite
from fedprivacy.values.wording import NO_PRIVACY, epsilon_text, metric_text

experiments = APIRouter(tags=["runs"])

Name = Annotated[str, Query(min_length=1, max_length=200)]

_MOST = 500
"""Maximum number of runs in a figure, the first by the order."""


def selected(
    catalogue: Runs, search: Words = "", tag: Words = "", task: Words = "", sort: Words = "started"
) -> list[dict[str, Any]]:
    """Return the rows of the selected runs, in order.

    Raises:
        HTTPException: 409, they cannot be sorted like that.
    """
    wanted = RunFilter(task, tag, search=search)
    rows = [row for row in map(row_of, catalogue.listing().runs) if wanted.takes(row)]
    try:
        return ordered(rows, sort)
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error


Selected = Annotated[list[dict[str, Any]], Depends(selected)]


@experiments.get("/experiments", responses=NOTHING_YET)
def table(
    rows: Selected, limit: Annotated[int, Query(ge=1, le=500)] = 50, offset: Annotated[int, Query(ge=0, le=10**7)] = 0
) -> models.Experiments:
    """List runs with their settings and everything that they measured."""
    metrics = measured_names(row["metrics"] for row in rows)
    return models.Experiments(
        total=len(rows),
        runs=[_body(row) for row in rows[offset : offset + limit]],
        differing=differing_settings(rows),
        metrics=metrics,
        main=main_metrics(metrics),
    )


@experiments.get("/experiments/figure.csv", responses=NOTHING_YET | AS_CSV, response_class=Response)
def numbers(rows: Selected, *, x: Name, y: Name, colour: Words = "") -> Response:
    """Get the numbers behind that figure as CSV."""
    return csv_of(experiment_rows(rows, x, y, colour), "runs")


@experiments.get("/experiments/figure", responses=NOTHING_YET)
def figure(
    rows: Selected, *, x: Name, y: Name, colour: Words = "", width: Width = 440, theme: Theme = Theme.LIGHT
) -> dict[str, Any]:
    """Draw a metric of each run against a setting or another metric, as Vega-Lite."""
    with drawing():
        chart = experiment_figure(rows[:_MOST], x, y, colour, width)
    return themed(chart, theme)


def _body(row: dict[str, Any]) -> models.ExperimentBody:
    private = row["settings"].get("privacy") is not False
    texts = {name: metric_text(name, value) for name, value in row["metrics"].items()}
    spent = epsilon_text(or_infinite(row["epsilon"])) if row["rounds"] else "not yet"
    return models.ExperimentBody(**row, metric_texts=texts, epsilon_text=spent if private else NO_PRIVACY)
