"""Figure of a reproduction along privacy budgets: a line for each way of training, and their crossings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import HEADROOM, Label, PlotFrame, Scale, named_beside, placed
from fedprivacy.figures.comparison import DASHES, SHAPES
from fedprivacy.figures.reproduction import DrawnRow
from fedprivacy.figures.style import INK, RUNS, WIDTH, chart_of, layered, styled, titled
from fedprivacy.values.wording import NO_PRIVACY, budget_text, count_text

MOST_LINES = len(RUNS)
"""Maximum number of lines: each has its own colour and shape."""

_FAR_APART = 4.0
"""Ratio of the largest to the smallest value from which on the vertical axis is logarithmic."""

_UPWARDS = 1.12
"""Factor by which the axis of budgets extends beyond the last ones."""


def has_lines(rows: Sequence[DrawnRow]) -> bool:
    """Return whether there is a line to draw: one with at least two budgets."""
    lines = [row.line for row in rows if row.line and row.budget is not None]
    return len(lines) > len(set(lines)) and len(set(lines)) <= MOST_LINES


def budgets_figure(title: str, quantity: str, rows: Sequence[DrawnRow], width: int = WIDTH) -> alt.LayerChart:
    """Draw means over seeds against the budget, with two standard errors; without privacy, at the right edge.

    Args:
        title: title of the reproduction.
        quantity: name of the drawn quantity.
        rows: rows; those of a line are drawn, at most `MOST_LINES` lines; see `has_lines`.
        width: width of the plot between its axes, in px.
    """
    drawn = [row for row in rows if row.line]
    names = list(dict.fromkeys(row.line for row in drawn))
    ends = {row.line: row for row in drawn if row.budget is None}
    measured = [value for row in drawn for value in (row.mean, *row.values)]
    logarithms = 0.0 < _FAR_APART * min(measured) < max(measured)
    points = [_point(row, logarithms) for row in sorted(drawn, key=lambda row: row.budget or math.inf)]
    shown = [value for point in points for value in (point["low"], point["high"], point["goal"]) if value is not None]
    margin = HEADROOM * (max(shown) - min(shown)) or HEADROOM
    budgets = sorted({row.budget for row in drawn if row.budget is not None})
    scale = Scale(min(shown) - margin, max(shown) + margin, logarithms=logarithms)
    frame = PlotFrame(_budgets(budgets), scale, width)
    clauses = [
        [quantity],
        [f"means of {count_text(len(drawn[0].values), 'seed')} with two standard errors"],
        [f"dotted: {NO_PRIVACY}"] if ends else [],
        ["level mark: a goal"] if any(row.goal is not None and row.budget is not None for row in drawn) else [],
    ]
    about = titled(title, [clause for clause in clauses if clause], frame.room)
    return styled(layered(_layers(points, names, frame), about, width))


def _point(row: DrawnRow, logarithms: bool) -> dict[str, Any]:
    low, high = (row.mean + side * row.standard_error for side in (-2, 2))
    if low <= 0.0:  # it has no logarithm
        low = min(row.values)
    places = {"mean": row.mean, "low": low, "high": high, "goal": row.goal}
    if logarithms:
        places = {name: None if value is None else math.log10(value) for name, value in places.items()}
    return places | {"line": row.line, "budget": row.budget, "text": f"{row.mean:#.3g}\N{EN SPACE}{row.line}"}


def _budgets(budgets: Sequence[float]) -> alt.X:
    """Make a logarithmic axis, labelled at the budgets themselves."""
    domain = [budgets[0] / _UPWARDS, budgets[-1] * _UPWARDS]
    labels = " : ".join(f"datum.value == {budget} ? '{budget_text(budget)}'" for budget in budgets)
    axis = alt.Axis(values=list(budgets), labelExpr=f"{labels} : ''", grid=False, domain=True, labelFlush=False)
    scaled = alt.X("budget:Q").title("epsilon of each client").scale(type="log", domain=domain, nice=False)
    return scaled.axis(axis)


def _layers(points: list[dict[str, Any]], names: Sequence[str], frame: PlotFrame) -> list[alt.Chart]:
    private, bare = ([p for p in points if (p["budget"] is None) is without] for without in (False, True))
    colours, dashes, shapes = (_looks(looks, names) for looks in (RUNS, DASHES, SHAPES))
    own, y = alt.Color("line:N", legend=None, scale=colours), frame.y
    base = chart_of(private).encode(frame.x, own)
    goals = chart_of([point for point in private if point["goal"] is not None]).encode(frame.x)
    last = {point["line"]: point for point in private}  # they are in the order of their budgets
    labels = placed([Label(last[name]["text"], last[name]["mean"], name) for name in names if name in last], frame)
    return [
        chart_of(bare).mark_rule(strokeDash=[2, 4], strokeWidth=1.5).encode(y("mean"), own),
        base.mark_line(strokeCap="butt").encode(y("mean"), alt.StrokeDash("line:N", legend=None, scale=dashes)),
        base.mark_rule(strokeWidth=1.5).encode(y("low"), alt.Y2("high")),
        base.mark_point(size=60).encode(y("mean"), alt.Shape("line:N", legend=None, scale=shapes)),
        goals.mark_tick(orient="horizontal", color=INK, thickness=2, size=18).encode(y("goal")),
        *named_beside(labels, frame, colours, shapes),
    ]


def _looks(looks: Sequence[Any], names: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=list(looks[: len(names)]))
