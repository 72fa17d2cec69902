"""Figures of two to eight runs side by side, each with a colour, dashes, a shape, and its name where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import (
    Label,
    PlotFrame,
    loss_scale,
    metric_scale,
    named_beside,
    names_across,
    names_upright,
    placed,
    rounds_axis,
    rules_across,
    rules_upright,
    shortened,
)
from fedprivacy.figures.observations import (
    Contest,
    compared_epsilon_rows,
    compared_metric_rows,
    compared_tradeoff_rows,
    contest,
)
from fedprivacy.figures.run import LOSS_TITLE
from fedprivacy.figures.style import COMPOSED, RUNS, WIDTH, Rows, chart_of, layered, seen, styled, titled
from fedprivacy.values.metrics import measured_on
from fedprivacy.values.series import RunSeries
from fedprivacy.values.wording import NO_PRIVACY, count_text, delta_text, epsilon_text, metric_name, metric_text

DASHES = ([1, 0], [9, 5], [3, 4], [12, 4, 3, 4], [6, 3], [16, 5], [9, 4, 3, 4, 3, 4], [5, 8])
"""Dash patterns of the lines of runs, in their order, in px."""

SHAPES = ("circle", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left", "diamond")
"""Shapes of the ends of runs, in their order."""


def compared_metric_figure(
    runs: Sequence[RunSeries], metric: str | None = None, width: int = WIDTH, *, below: bool = False
) -> alt.LayerChart:
    """Draw a metric after every round, for each run that measured it.

    Args:
        runs: 2 to 8 runs.
        metric: name of the metric; None: the first run's.
        width: width of the plot between its axes, in px.
        below: whether the runs' names stand below the plot, for narrow screens, instead of beside it.

    Raises:
        ValueError: there are fewer or more runs, or none has a finished round.
    """
    found = contest(runs, metric, measured=True)
    rows = [row for row in compared_metric_rows(runs, metric) if row["value"] is not None]
    frame = PlotFrame(_rounds(found), metric_scale(found.metric, [row["value"] for row in rows]), width, below)
    about = [measured_on(found.metric), "after each round"]
    return _figure(_drawn(rows, frame, "value", found), found, _metric_reached(found, rows), about, frame)


def compared_epsilon_figure(runs: Sequence[RunSeries], width: int = WIDTH, *, below: bool = False) -> alt.LayerChart:
    """Draw the largest epsilon of a client after every round, of each run; see `compared_metric_figure`."""
    found = contest(runs, private=True)
    rows = [row for row in compared_epsilon_rows(runs) if row["epsilon"] is not None]
    budgets = _budgets(found)
    frame = PlotFrame(_rounds(found), loss_scale([*(row["epsilon"] for row in rows), *budgets]), width, below)
    lines = [rules_across(budgets, frame), *_drawn(rows, frame, "epsilon", found)]
    layers = [*lines, *names_across(budgets, frame)]
    return _figure(layers, found, f"largest privacy loss {_loss_reached(found)}", _losses(found), frame)


def compared_tradeoff_figure(
    runs: Sequence[RunSeries], metric: str | None = None, width: int = WIDTH, *, below: bool = False
) -> alt.LayerChart:
    """Draw a metric against the largest epsilon of a client; arguments as `compared_metric_figure`."""
    found = contest(runs, metric, measured=True, private=True)
    rows = [row for row in compared_tradeoff_rows(runs, metric) if None not in row.values()]
    budgets = _budgets(found)
    losses = loss_scale([*(row["epsilon"] for row in rows), *budgets])
    values = metric_scale(found.metric, [row["value"] for row in rows])
    frame = PlotFrame(losses.x("epsilon").title(LOSS_TITLE), values, width, below)
    reached = f"{_metric_reached(found, rows)} for {_loss_reached(found)}"
    x = losses.x("budget")
    layers = [rules_upright(budgets, x), *_drawn(rows, frame, "value", found), *names_upright(budgets, x, at_top=False)]
    return _figure(layers, found, reached, _losses(found), frame)


def _figure(
    layers: list[alt.Chart], found: Contest, reached: str, about: Sequence[str], frame: PlotFrame
) -> alt.LayerChart:
    title = f"{count_text(len(found.runs), 'run')}: {reached}"
    clauses = [about, *([["left out: " + ", ".join(found.left_out)]] if found.left_out else [])]
    return styled(layered(layers, titled(title, clauses, frame.room), frame.width))


def _rounds(found: Contest) -> alt.X:
    """Make a horizontal axis as long as the longest run."""
    return rounds_axis(max(run.series.last.round for run in found.runs))


def _budgets(found: Contest) -> list[float]:
    return sorted({budget for run in found.runs for budget in run.series.budgets})


def _losses(found: Contest) -> list[str]:
    """Describe the epsilons, and obstacles to comparing them."""
    facts = [run.series.facts for run in found.runs]
    kinds = {"neighbouring relations": [fact.relation for fact in facts], "units": [fact.unit for fact in facts]}
    unlike = [f"{name} differ: {', '.join(sorted(set(each)))}" for name, each in kinds.items() if len(set(each)) > 1]
    return [*seen("largest ε of a client", *(fact.delta for fact in facts)), *COMPOSED, *unlike]


def _metric_reached(found: Contest, rows: Rows) -> str:
    values = [row["value"] for row in _ends(rows).values()]
    least, most = (metric_text(found.metric, pick(values, default=None)) for pick in (min, max))
    return f"{metric_name(found.metric)} {_range(least, most)}"


def _loss_reached(found: Contest) -> str:
    losses = [run.series.worst for run in found.runs]
    return f"ε {_range(epsilon_text(*min(losses)), epsilon_text(*max(losses)))}"


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _ends(rows: Rows) -> dict[str, dict[str, Any]]:
    """Return the last row of each run."""
    return {row["run"]: row for row in rows}


def _drawn(rows: Rows, frame: PlotFrame, field: str, found: Contest) -> list[alt.Chart]:
    """Draw a line for each run, a shape where it ends, and the same shape before its name."""
    colours, dashes, shapes = (_looks(looks, found) for looks in (RUNS, DASHES, SHAPES))
    own = alt.Color("run:N", legend=None, scale=colours)
    lines = chart_of(rows).mark_line(strokeCap="butt").encode(frame.x, frame.y(field), own, alt.Order("round:Q"))
    ends = chart_of(_ends(rows).values()).mark_point(size=80).encode(frame.x, frame.y(field), own)
    names = placed(_labels(rows, field, found), frame)
    return [
        lines.encode(alt.StrokeDash("run:N", legend=None, scale=dashes)),
        ends.encode(alt.Shape("run:N", legend=None, scale=shapes)),
        *named_beside(names, frame, colours, shapes),
    ]


def _looks(looks: Sequence[Any], found: Contest) -> alt.Scale:
    """Map each run's name to the look of its place."""
    return alt.Scale(domain=[run.name for run in found.runs], range=[looks[run.place] for run in found.runs])


def _labels(rows: Rows, field: str, found: Contest) -> list[Label]:
    """Label the end of each run with its value and its name; with its delta if the runs have several."""
    several = len({run.series.facts.delta for run in found.runs if run.series.facts.private}) > 1
    ends, labels = _ends(rows), []
    for run in found.runs:
        if end := ends.get(run.name):
            reached = epsilon_text(*run.series.worst) if field == "epsilon" else metric_text(end["metric"], end[field])
            delta = f", δ = {delta_text(run.series.facts.delta)}" if several else ""
            about = delta if run.series.facts.private else f", {NO_PRIVACY}"
            labels.append(Label(f"{reached}\N{EN SPACE}{shortened(run.name)}{about}", end[field], run.name))
    return labels
