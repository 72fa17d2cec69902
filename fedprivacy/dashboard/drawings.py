"""Figures as Vega-Lite, from `fedprivacy.figures`, and the numbers behind them as CSV."""

from __future__ import annotations

import csv
import enum
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from pydantic import WithJsonSchema

from fedprivacy import figures
from fedprivacy._support.altair import alt
from fedprivacy.dashboard.api import NOTHING_YET, ClientName, Runs, TheRun, Words, find, one_of
from fedprivacy.figures import observations
from fedprivacy.figures.named import FigureOptions, NamedFigure, RunData
from fedprivacy.figures.style import Rows
from fedprivacy.ledger import LedgerError
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.history import costs_of, series_of
from fedprivacy.runs.records.store import StoredRun
from fedprivacy.values.series import MOST_CHOSEN, RunSeries

_ONE_AT_A_TIME = threading.Lock()
"""Lock: Altair's channels share state while they are set up, so that two threads would mix their figures."""

drawings = APIRouter(tags=["figures"])


class ComparisonName(enum.StrEnum):
    """Names of the figures that compare runs."""

    METRIC = "metric"
    EPSILON = "epsilon"
    TRADEOFF = "tradeoff"


class Theme(enum.StrEnum):
    """Theme of the page that a figure is for."""

    LIGHT = "light"
    DARK = "dark"


Width = Annotated[int, Query(ge=200, le=2000, description="width of the plot between its axes, in px")]
Below = Annotated[bool, Query(description="labels of lines below the plot, for narrow screens, not beside it")]
RunIds = Annotated[list[Words], Query(min_length=2, max_length=8)]
AS_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of a figure: chosen clients, and a metric other than the first."""

    clients: Annotated[list[ClientName], Query(default_factory=list, max_length=MOST_CHOSEN)]
    metric: Words = ""
    below: Below = False

    @property
    def options(self) -> FigureOptions:
        """Options of a figure that has a name everywhere."""
        return FigureOptions(self.clients, self.metric or None, self.below)


Wanted = Annotated[Wish, Depends(Wish)]


def _data_of(run: StoredRun) -> RunData:
    """Read a run for its figures when they are drawn."""
    return RunData(
        lambda clients: series_of(run, run.standings_of(clients) if clients else ()),
        lambda clients: costs_of(run, run.standings_of(clients) if clients else None),
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A figure of a stored run and the numbers behind it."""

    draw: Callable[[StoredRun, Wish, int], alt.LayerChart]
    rows: Callable[[StoredRun, Wish], Rows]


def _named_drawing(found: NamedFigure[RunData, FigureOptions]) -> _Drawn:
    return _Drawn(
        lambda run, wish, width: found.draw(_data_of(run), wish.options, width),
        lambda run, wish: found.rows(_data_of(run), wish.options),
    )


_DRAWINGS = {name: _named_drawing(found) for name, found in figures.NAMED_FIGURES.items()} | {
    "audit": _Drawn(
        lambda run, _, width: figures.audit_figure(run.audits(), f"run {run.facts.name}", width),
        lambda run, _: observations.audit_rows(run.audits()),
    )
}
"""Figures of a run by name: those that it has everywhere, and those that only its database can draw."""


FigureName = Annotated[str, one_of(_DRAWINGS, "figure"), WithJsonSchema({"type": "string", "enum": list(_DRAWINGS)})]


@drawings.get("/runs/{run_id}/figures/{name}.csv", responses=NOTHING_YET | AS_CSV, response_class=Response)
def numbers(found: TheRun, name: FigureName, wish: Wanted) -> Response:
    """Get the numbers behind a figure as CSV."""
    with drawing():
        return csv_of(_DRAWINGS[name].rows(found, wish), f"{found.facts.name}-{name}")


@drawings.get("/runs/{run_id}/figures/{name}", responses=NOTHING_YET)
def figure(
    found: TheRun, name: FigureName, wish: Wanted, width: Width = 440, theme: Theme = Theme.LIGHT
) -> dict[str, Any]:
    """Get a figure as Vega-Lite, its data inside."""
    with drawing():
        chart = _DRAWINGS[name].draw(found, wish, width)
    return with_theme(chart, theme)


@drawings.get("/compare/figures/{name}.csv", responses=NOTHING_YET | AS_CSV, response_class=Response)
def compared_numbers(catalogue: Runs, name: ComparisonName, runs: RunIds, metric: Words = "") -> Response:
    """Get the numbers behind a comparison as CSV."""
    (_, rows), several = _COMPARED[name], _several(catalogue, runs)
    with drawing():
        return csv_of(rows(several, metric or None), f"compared-{name}")


@drawings.get("/compare/figures/{name}", responses=NOTHING_YET)
def comparison(
    catalogue: Runs,
    name: ComparisonName,
    runs: RunIds,
    *,
    metric: Words = "",
    width: Width = 440,
    below: Below = False,
    theme: Theme = Theme.LIGHT,
) -> dict[str, Any]:
    """Get several runs in one figure as Vega-Lite."""
    (draw, _), several = _COMPARED[name], _several(catalogue, runs)
    with drawing():
        chart = draw(several, metric or None, width, below)
    return with_theme(chart, theme)


_COMPARED: dict[
    ComparisonName,
    tuple[
        Callable[[Sequence[RunSeries], str | None, int, bool], alt.LayerChart],
        Callable[[Sequence[RunSeries], str | None], Rows],
    ],
] = {
    ComparisonName.METRIC: (
        lambda runs, metric, width, below: figures.compared_metric_figure(runs, metric, width, below=below),
        observations.compared_metric_rows,
    ),
    ComparisonName.EPSILON: (
        lambda runs, _, width, below: figures.compared_epsilon_figure(runs, width, below=below),
        lambda runs, _: observations.compared_epsilon_rows(runs),
    ),
    ComparisonName.TRADEOFF: (
        lambda runs, metric, width, below: figures.compared_tradeoff_figure(runs, metric, width, below=below),
        observations.compared_tradeoff_rows,
    ),
}


def _several(catalogue: Catalogue, run_ids: Sequence[str]) -> list[RunSeries]:
    """Find different runs, in the order in which they are named.

    Raises:
        HTTPException: 404, there is no such run; 409, there is nothing to compare.
    """
    found = [find(catalogue, run_id) for run_id in dict.fromkeys(run_ids)]
    if len(found) < 2:
        raise HTTPException(409, "Name two different runs or more.")
    return [series_of(run) for run in found]


@contextmanager
def drawing() -> Iterator[None]:
    """One figure at a time; if there is nothing to draw yet, what is missing, by an HTTPException 409."""
    try:
        with _ONE_AT_A_TIME:
            yield
    except LedgerError:
        raise
    except ValueError as nothing:
        raise HTTPException(409, str(nothing)) from nothing


def with_theme(chart: alt.LayerChart, theme: Theme) -> dict[str, Any]:
    """Return a figure as Vega-Lite, in the colours of a theme."""
    spec = figures.spec_of(chart)
    return figures.dark(spec) if theme is Theme.DARK else spec


def csv_of(rows: Rows, name: str) -> Response:
    """Return rows as a CSV file of this name."""
    if not rows:
        raise HTTPException(409, "There are no numbers yet.")
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(rows[0])
    table.writerows([_cell(value) for value in row.values()] for row in rows)
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in name)
    headers = {"Content-Disposition": f'attachment; filename="{safe}.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: object) -> object:
    """Protect a cell from being taken for a formula by a spreadsheet: names of clients come from elsewhere."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
