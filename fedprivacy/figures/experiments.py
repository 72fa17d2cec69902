"""Figures of many runs: a metric of each against a setting, or a line for each through its settings to a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import AXIS_ROOM, LABEL_GAP, metric_scale, shorten
from fedprivacy.figures.style import (
    COSTS,
    HEIGHT,
    RUNS,
    WIDTH,
    Rows,
    chart_of,
    layer,
    make_title,
    outlined_texts,
    with_style,
)
from fedprivacy.values.wording import count_text, less_is_better, metric_name, metric_text

AXIS_GAP = 76
"""Minimum distance between parallel axes, in px: values are written between them."""

LEGEND_ENTRY = 110
"""Width of an entry of a legend, in px."""

_LEFT_OPEN = -0.12, "open"
"""Place along a parallel axis from 0 to 1, and text, of a setting that a run leaves open."""

_WIDE = 20.0
"""Ratio of the largest to the smallest value of a positive setting above which its axis is logarithmic."""


def experiment_rows(runs: Iterable[Mapping[str, Any]], x: str, y: str, colour: str = "") -> Rows:
    """Return rows `run`, `x`, `y` and `colour` under their own names, for runs that have both of the first two.

    Args:
        runs: rows of `fedprivacy.list_runs`.
        x: a setting or a metric.
        y: a metric.
        colour: a setting or a metric; empty: none.
    """
    return [row for row in parallel_rows(runs, [x], y, colour) if row[x] is not None]


def parallel_rows(runs: Iterable[Mapping[str, Any]], settings: Sequence[str], metric: str, colour: str = "") -> Rows:
    """Return rows `run`, the settings, the metric and `colour` under their own names, for runs that have the metric.

    Args:
        runs: rows of `fedprivacy.list_runs`.
        settings: settings or metrics.
        metric: a metric.
        colour: a setting or a metric; empty: none.
    """
    wanted = [name for name in dict.fromkeys((*settings, metric, colour)) if name]
    rows = [{"run": run["run"]} | {name: _value(run, name) for name in wanted} for run in runs]
    return [row for row in rows if isinstance(row[metric], int | float)]


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
    chart = chart_of(points).mark_point(size=70, filled=True, opacity=0.8)
    named = {"run": "run", "x": x, "reached": y} | ({"colour": colour} if colour else {})
    about = [alt.Tooltip(f"{field}:N", title=name) for field, name in named.items()]
    values = metric_scale(y, [row[y] for row in rows]).y("y")
    chart = chart.encode(_axis(x, [row[x] for row in rows]), values, tooltip=about)
    if colour:
        chart = chart.encode(_colour(colour, [row[colour] for row in rows], width))
    return _figure([chart], rows, y, [[f"{y} against {x}", "newest values"]], width)


def parallel_figure(
    runs: Iterable[Mapping[str, Any]], settings: Sequence[str], metric: str, colour: str = "", width: int = WIDTH
) -> alt.LayerChart:
    """Draw a line for each run through its settings to the newest value of a metric; that of the best run is thick.

    Each setting has an upright axis, on which words are spread evenly. The first settings that have room are drawn, and
    the subtitle names the others.

    Args:
        runs: rows of `fedprivacy.list_runs`.
        settings: settings or metrics, an axis each.
        metric: a metric, the last axis.
        colour: a setting or a metric that colours the lines; empty: the metric.
        width: width of the plot from the first to the last axis, in px.

    Raises:
        ValueError: no run has the metric.
    """
    names, colour = [name for name in dict.fromkeys(settings) if name != metric], colour or metric
    rows = parallel_rows(runs, names, metric, colour)
    if not rows:
        raise ValueError(f"no run has {metric_name(metric)} yet; choose another.")
    room = max(1, width // AXIS_GAP)
    axes = {name: _places([row[name] for row in rows]) for name in names[:room]}
    axes[metric] = _places([row[metric] for row in rows], partial(metric_text, metric))
    best = _best(rows, metric)
    points = [
        {"run": row["run"], "line": line, "axis": metric_name(name), "order": order, "colour": row[colour]}
        | dict(zip(("place", "value"), places[row[name]], strict=True))
        for line, row in enumerate(rows)
        for order, (name, places) in enumerate(axes.items())
    ]
    lines = max(metric_name(name).count(" ") for name in axes)
    heads = alt.Axis(orient="top", labelExpr="split(datum.label, ' ')", labelAngle=0, labelPadding=10 + 13 * lines)
    x = alt.X("axis:N").title(None).axis(heads).scale(type="point", domain=[*map(metric_name, axes)], padding=0)
    y = alt.Y("place:Q").axis(None).scale(domain=[min(0.0, *(row["place"] for row in points)), 1.0], nice=False)
    about = [alt.Tooltip(f"{field}:N") for field in ("run", "axis", "value")]
    own = _colour(colour, [row[colour] for row in rows], width)
    others, thick = (chart_of([p for p in points if (rows[p["line"]] is best) is it]) for it in (False, True))
    written = [
        {"axis": metric_name(name), "place": place, "text": text}
        for name, places in axes.items()
        for place, text in _apart(sorted(places.values()))
    ]
    layers = [
        others.mark_line(strokeWidth=1.5).encode(x, y, own, alt.Detail("line:N"), alt.Order("order:Q"), tooltip=about),
        thick.mark_line(strokeWidth=5).encode(x, y, own, alt.Detail("line:N"), alt.Order("order:Q"), tooltip=about),
        chart_of(points).mark_point(size=30).encode(x, y, own, tooltip=about),
        *outlined_texts(chart_of(written).encode(x, y, alt.Text("text:N")), dx=6),
    ]
    left_out = [[f"no room for {', '.join(names[room:])}"]] if names[room:] else []
    return _figure(layers, rows, metric, [["a line for each run", "that of the best is thick"], *left_out], width)


def _places(values: Iterable[Any], text: Callable[[Any], str] = "{:.6g}".format) -> dict[Any, tuple[float, str]]:
    """Map each value to its place on an axis from 0 to 1 and its text: numbers by their size, words evenly."""
    different = set(values)
    known = sorted(different - {None}, key=lambda value: (isinstance(value, str), value))
    if _numeric(known):
        sizes = [math.log(value) if _is_wide(known) else value for value in known]
    else:
        sizes, text = list(range(len(known))), lambda word: shorten(str(word), 11)
    places = {
        value: ((size - sizes[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else 0.5, text(value))
        for value, size in zip(known, sizes, strict=True)
    }
    return places | ({None: _LEFT_OPEN} if None in different else {})


def _apart(labels: Sequence[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Select labels, ascending, that do not overlap; always the first and the last."""
    gap, (end, _) = LABEL_GAP / HEIGHT, labels[-1]
    taken = -math.inf
    for place, text in labels:
        if place == end or taken + gap <= place <= end - gap:
            taken = place
            yield place, text


def _figure(
    layers: list[alt.Chart], rows: Rows, metric: str, clauses: Sequence[Sequence[str]], width: int
) -> alt.LayerChart:
    best = _best(rows, metric)
    reached = f"best {metric_name(metric)} {metric_text(metric, best[metric])}, in {best['run']}"
    title = make_title(f"{count_text(len(rows), 'run')}: {reached}", clauses, width + AXIS_ROOM)
    return with_style(layer(layers, title, width))


def _best(rows: Rows, metric: str) -> dict[str, Any]:
    return (min if less_is_better(metric) else max)(rows, key=lambda row: row[metric])


def _value(run: Mapping[str, Any], name: str) -> Any:
    if name in run["metrics"]:
        return run["metrics"][name]
    value = run["settings"].get(name)
    return str(value) if isinstance(value, bool) else None if value == "" else value


def _numeric(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > _WIDE * min(values)


def _axis(name: str, values: list[Any]) -> alt.X:
    """Make a horizontal axis: linear, logarithmic, or of texts."""
    if not _numeric(values):
        return alt.X("x:N").title(name).axis(alt.Axis(labelAngle=0, grid=False, domain=True))
    kind = {"type": "log"} if _is_wide(values) else {"zero": False}
    scale = alt.Scale(**kind, nice=False, padding=12)
    return alt.X("x:Q").title(name).scale(scale).axis(alt.Axis(tickCount=5, format="~g", grid=False, domain=True))


def _colour(name: str, values: list[Any], width: int) -> alt.Color:
    known = [value for value in values if value is not None]
    columns = max(1, (width + AXIS_ROOM) // LEGEND_ENTRY)
    entries: dict[str, Any] = {"title": name, "orient": "bottom", "columns": columns, "labelLimit": LEGEND_ENTRY}
    if known and _numeric(known):
        classes = alt.Scale(type="quantize", domain=[min(known), max(known)], range=list(COSTS))
        return alt.Color("colour:Q", legend=alt.Legend(**entries, format=".3~g"), scale=classes)
    return alt.Color("colour:N", legend=alt.Legend(**entries)).scale(
        domain=sorted(set(map(str, known))), range=list(RUNS)
    )
