"""Figure of many runs: a metric of each against a setting or another metric, a point for each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt

from fedprivacy.figures.axes import AXIS_ROOM, metric_scale
from fedprivacy.figures.style import COSTS, RUNS, WIDTH, Rows, chart_of, layered, styled, titled
from fedprivacy.values.wording import count_text, less_is_better, metric_name, metric_text


def experiment_rows(runs: Iterable[Mapping[str, Any]], x: str, y: str, colour: str = "") -> Rows:
    """Return rows `run`, `x`, `y` and `colour` under their own names, for runs that have both of the first two.

    Args:
        runs: rows of `fedprivacy.list_runs`.
        x: a setting or a metric.
        y: a metric.
        colour: a setting or a metric; empty: none.
    """
    wanted = [name for name in dict.fromkeys((x, y, colour)) if name]
    rows = [{"run": run["run"]} | {name: _value(run, name) for name in wanted} for run in runs]
    return [row for row in rows if row[x] is not None and isinstance(row[y], int | float)]


def experiment_figure(
    runs: Iterable[Mapping[str, Any]], x: str, y: str, colour: str = "", width: int = WIDTH
) -> alt.LayerChart:
    """Draw the newest value of a metric of each run against a setting or another metric.

    A positive setting that spans more than a factor of 20 gets a logarithmic axis.

    Args:
        runs: rows of `fedprivacy.list_runs`.
        x: a setting or a metric.
        y: a metric.
        colour: a setting or a metric that colours the points; empty: none.
        width: width of the plot between its axes, in px.

    Raises:
        ValueError: no run has both.
    """
    rows = experiment_rows(runs, x, y, colour)
    if not rows:
        raise ValueError(f"no run has {metric_name(x)} and {metric_name(y)} yet; choose others.")
    points = [
        {"run": row["run"], "x": row[x], "y": row[y], "reached": metric_text(y, row[y])}
        | ({"colour": row[colour]} if colour else {})
        for row in rows
    ]
    best = (min if less_is_better(y) else max)(rows, key=lambda row: row[y])
    chart = chart_of(points).mark_point(size=70, filled=True, opacity=0.8)
    about = [alt.Tooltip(f"{field}:N", title=name) for field, name in _told(x, y, colour).items()]
    values = metric_scale(y, [row[y] for row in rows]).y("y")
    chart = chart.encode(_axis(x, [row[x] for row in rows]), values, tooltip=about)
    if colour:
        chart = chart.encode(_colour(colour, [row[colour] for row in rows]))
    title = f"{count_text(len(rows), 'run')}: best {metric_name(y)} {metric_text(y, best[y])}, in {best['run']}"
    return styled(layered([chart], titled(title, [[f"{y} against {x}", "newest values"]], width + AXIS_ROOM), width))


def _value(run: Mapping[str, Any], name: str) -> Any:
    if name in run["metrics"]:
        return run["metrics"][name]
    value = run["settings"].get(name)
    return str(value) if isinstance(value, bool) else None if value == "" else value


def _told(x: str, y: str, colour: str) -> dict[str, str]:
    return {"run": "run", "x": x, "reached": y} | ({"colour": colour} if colour else {})


def _numeric(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _axis(name: str, values: list[Any]) -> alt.X:
    """Make a horizontal axis: linear, logarithmic, or of texts."""
    if not _numeric(values):
        return alt.X("x:N").title(name).axis(alt.Axis(labelAngle=0, grid=False, domain=True))
    wide = min(values) > 0 and max(values) > 20 * min(values)
    scale = alt.Scale(type="log", nice=False, padding=12) if wide else alt.Scale(zero=False, nice=False, padding=12)
    return alt.X("x:Q").title(name).scale(scale).axis(alt.Axis(tickCount=5, format="~g", grid=False, domain=True))


def _colour(name: str, values: list[Any]) -> alt.Color:
    known = [value for value in values if value is not None]
    legend = alt.Legend(title=name, orient="bottom")
    if known and _numeric(known):
        return alt.Color("colour:Q", legend=legend).scale(range=list(COSTS))
    return alt.Color("colour:N", legend=legend).scale(domain=sorted(set(map(str, known))), range=list(RUNS))
