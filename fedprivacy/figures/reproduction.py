"""Figure of a reproduction: seeds, the mean with its standard error, the goal and the paper's value, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import HEADROOM, LABEL_ROOM, Scale
from fedprivacy.figures.style import EXHAUSTED, INK, MUTED, SPENDING, WIDTH, chart_of, layered, styled, titled
from fedprivacy.values.wording import beside_text, count_text

ROW_HEIGHT = 44
"""Height of a row, in px."""


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
        line, budget: place in the figure over budgets, see `fedprivacy.reproductions.experiment.Row`.
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
        [f"points are the {count_text(len(rows[0].values), 'seed')}", "large ones their mean with two standard errors"],
        ["upright mark: the goal", "diamond: the paper's"],
    ]
    height = max(ROW_HEIGHT * len(rows), 2 * ROW_HEIGHT)
    return styled(layered(layers, titled(f"{title}: {_reached(rows)}", clauses, width + LABEL_ROOM), width, height))


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


def _reached(rows: Sequence[DrawnRow]) -> str:
    goals = [row.met for row in rows if row.met is not None]
    if not goals:
        return "recorded, without a goal"
    if len(goals) == 1:
        return "the goal is met" if goals[0] else "the goal is not met"
    return f"all {len(goals)} goals are met" if all(goals) else f"{sum(goals)} of {len(goals)} goals are met"
