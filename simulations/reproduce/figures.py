"""Figures of a reproduction: seeds, mean, goal and the paper's value, row by row; and lines along privacy budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from fedprivacy.figures.axes import HEADROOM, LABEL_ROOM, Label, PlotFrame, Scale, named_beside, place_labels
from fedprivacy.figures.comparison import DASHES, SHAPES
from fedprivacy.figures.style import (
    EXHAUSTED,
    INK,
    MUTED,
    RUNS,
    SPENDING,
    WIDTH,
    chart_of,
    layer,
    make_title,
    with_style,
)

NO_PRIVACY = "no privacy"
"""The word for a row whose training has no epsilon."""

ROW_HEIGHT = 44
"""Height of a row, in px."""

MOST_LINES = len(RUNS)
"""Maximum number of lines: each has its own colour and shape."""

_FAR_APART = 4.0
"""Ratio of the largest to the smallest value from which on the vertical axis is logarithmic."""

_UPWARDS = 1.12
"""Factor by which the axis of budgets extends beyond the last ones."""


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """One line of a reproduction's figure.

    Attributes:
        name: name of the row.
        values: value of each seed.
        mean: mean of the values.
        standard_error: standard error of the mean; 0 for one seed.
        goal: value that the mean should reach, or None.
        published: value that the paper reports, or None.
        met: whether the goal is reached; None: there is no goal.
        line, budget: place in the figure over budgets, see `simulations.reproduce.experiment.Row`.
    """

    name: str
    values: Sequence[float]
    mean: float
    standard_error: float
    goal: float | None
    published: float | None
    met: bool | None
    line: str = ""
    budget: float | None = None


def reproduction_figure(title: str, rows: Sequence[DrawnRow], width: int = WIDTH) -> alt.LayerChart:
    """Draw a line for each row: points are seeds, the bar two standard errors around the mean.

    Args:
        title: title of the reproduction.
        rows: rows, at least one.
        width: width of the plot between its axes, in px.
    """
    drawn = [_row(row) for row in rows]
    seeds = [{"name": row.name, "value": value} for row in rows for value in row.values]
    x = _scale(rows)
    y = alt.Y("name:N", title=None, sort=[row.name for row in rows])
    y = y.axis(alt.Axis(grid=True, labelLimit=260, labelFontSize=12.5, labelColor=INK))
    colour = alt.Color("verdict:N", legend=None).scale(
        domain=["met", "not met", "recorded"], range=[SPENDING, EXHAUSTED, MUTED]
    )
    means, goals = chart_of(drawn).encode(y), chart_of([row for row in drawn if row["goal"] is not None]).encode(y)
    published = chart_of([row for row in drawn if row["published"] is not None]).encode(y)
    layers = [
        goals.mark_tick(color=INK, thickness=2, size=26).encode(x.x("goal").title(None)),
        published.mark_point(shape="diamond", filled=False, color=INK, size=90).encode(x.x("published")),
        chart_of(seeds).mark_point(color=MUTED, opacity=0.45, size=30).encode(y, x.x("value")),
        means.mark_rule(strokeWidth=2.5).encode(x.x("low"), colour, alt.X2("high")),
        means.mark_point(size=85).encode(x.x("mean"), colour),
        means.mark_text().encode(alt.XValue(width + 14), alt.Text("text:N")),
    ]
    clauses = [
        [f"points are the {seeds_text(len(rows[0].values))}", "large ones their mean with two standard errors"],
        ["upright mark: the goal", "diamond: the paper's"],
    ]
    height = max(ROW_HEIGHT * len(rows), 2 * ROW_HEIGHT)
    return with_style(
        layer(layers, make_title(f"{title}: {_reached(rows)}", clauses, width + LABEL_ROOM), width, height)
    )


def _row(row: DrawnRow) -> dict[str, Any]:
    verdict = {True: "met", False: "not met", None: "recorded"}[row.met]
    text = beside_text(row.mean, row.goal) + (f"\N{EN SPACE}{verdict}" if row.met is not None else "")
    low, high = row.mean - 2 * row.standard_error, row.mean + 2 * row.standard_error
    of_row = {"name": row.name, "mean": row.mean, "goal": row.goal, "published": row.published}
    return of_row | {"low": low, "high": high, "verdict": verdict, "text": text}


def _scale(rows: Sequence[DrawnRow]) -> Scale:
    """Make a scale close around everything that is drawn, because differences must be visible."""
    shown = [value for row in rows for value in (*row.values, row.goal, row.published) if value is not None]
    shown += [row.mean + side * row.standard_error for row in rows for side in (-2, 2)]
    low, high = min(shown), max(shown)
    margin = HEADROOM * (high - low) or HEADROOM
    return Scale(low - margin, high + margin)


def seeds_text(count: int) -> str:
    """'1 seed', '5 seeds'."""
    return "1 seed" if count == 1 else f"{count} seeds"


def beside_text(value: float, other: float | None) -> str:
    """Format a number to four digits, or to as many as tell it from the number beside it.

    >>> beside_text(0.949961, 0.95), beside_text(0.951234, 0.95), beside_text(2 / 3, None)
    ('0.94996', '0.9512', '0.6667')
    """
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(text for text in texts if other is None or value == other or float(text) != other)


def _reached(rows: Sequence[DrawnRow]) -> str:
    goals = [row.met for row in rows if row.met is not None]
    if not goals:
        return "recorded, without a goal"
    if len(goals) == 1:
        return "the goal is met" if goals[0] else "the goal is not met"
    return f"all {len(goals)} goals are met" if all(goals) else f"{sum(goals)} of {len(goals)} goals are met"


class _Logarithms(Scale):
    """A scale of logarithms to the base of 10, labelled by what they are logarithms of."""

    def y(self, field: str) -> alt.Y:
        """Return the vertical channel of a field."""
        return super().y(field).axis(alt.Axis(tickCount=5, labelExpr="format(pow(10, datum.value), '.2~g')"))


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
    scale = (_Logarithms if logarithms else Scale)(min(shown) - margin, max(shown) + margin)
    frame = PlotFrame(_budgets(budgets), scale, width)
    clauses = [
        [quantity],
        [f"means of {seeds_text(len(drawn[0].values))} with two standard errors"],
        [f"dotted: {NO_PRIVACY}"] if ends else [],
        ["level mark: a goal"] if any(row.goal is not None and row.budget is not None for row in drawn) else [],
    ]
    about = make_title(title, [clause for clause in clauses if clause], frame.room)
    return with_style(layer(_layers(points, names, frame), about, width))


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
    labels = " : ".join(f"datum.value == {budget} ? '{budget:g}'" for budget in budgets)
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
    labels = place_labels(
        [Label(last[name]["text"], last[name]["mean"], name) for name in names if name in last], frame
    )
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
