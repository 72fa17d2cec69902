"""Figures that compare runs: two to eight side by side, and those of a sweep by their epsilon.

Side by side each run has a colour, dashes, a shape, and its name where it ends. A sweep shows a metric against epsilon,
its mean and standard deviation over seeds, beside the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import (
    AXIS_ROOM,
    HEADROOM,
    LABEL_ROOM,
    Label,
    PlotFrame,
    Scale,
    leaders,
    loss_scale,
    metric_scale,
    named_beside,
    names_across,
    names_upright,
    place_labels,
    rounds_axis,
    rules_across,
    rules_upright,
    shorten,
)
from fedprivacy.figures.observations import (
    Contest,
    compared_epsilon_rows,
    compared_metric_rows,
    compared_tradeoff_rows,
    contest,
)
from fedprivacy.figures.run import LOSS_TITLE
from fedprivacy.figures.style import COMPOSED, RUNS, WIDTH, Rows, chart_of, layer, make_title, observer_text, with_style
from fedprivacy.values.metrics import measured_on
from fedprivacy.values.series import RunSeries
from fedprivacy.values.wording import (
    NO_PRIVACY,
    budget_text,
    count_text,
    delta_text,
    epsilon_text,
    is_share,
    less_is_better,
    metric_name,
    metric_text,
)

DASHES = ([1, 0], [9, 5], [3, 4], [12, 4, 3, 4], [6, 3], [16, 5], [9, 4, 3, 4, 3, 4], [5, 8])
"""Dash patterns of the lines of runs, in their order, in px."""

SHAPES = ("circle", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left", "diamond")
"""Shapes of the ends of runs, in their order."""

MOST_LINES = len(RUNS)
"""Maximum number of settings besides epsilon that have a line of their own; of more, the first."""


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
    return _figure(_draw_lines(rows, frame, "value", found), found, _metric_reached(found, rows), about, frame)


def compared_epsilon_figure(runs: Sequence[RunSeries], width: int = WIDTH, *, below: bool = False) -> alt.LayerChart:
    """Draw the largest epsilon of a client after every round, of each run; see `compared_metric_figure`."""
    found = contest(runs, private=True)
    rows = [row for row in compared_epsilon_rows(runs) if row["epsilon"] is not None]
    budgets = _budgets(found)
    frame = PlotFrame(_rounds(found), loss_scale([*(row["epsilon"] for row in rows), *budgets]), width, below)
    lines = [rules_across(budgets, frame), *_draw_lines(rows, frame, "epsilon", found)]
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
    layers = [
        rules_upright(budgets, x),
        *_draw_lines(rows, frame, "value", found),
        *names_upright(budgets, x, at_top=False),
    ]
    return _figure(layers, found, reached, _losses(found), frame)


def _figure(
    layers: list[alt.Chart], found: Contest, reached: str, about: Sequence[str], frame: PlotFrame
) -> alt.LayerChart:
    title = f"{count_text(len(found.runs), 'run')}: {reached}"
    clauses = [about, *([["left out: " + ", ".join(found.left_out)]] if found.left_out else [])]
    return with_style(layer(layers, make_title(title, clauses, frame.room), frame.width))


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
    return [*observer_text("largest ε of a client", *(fact.delta for fact in facts)), *COMPOSED, *unlike]


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


def _draw_lines(rows: Rows, frame: PlotFrame, field: str, found: Contest) -> list[alt.Chart]:
    """Draw a line for each run, a shape where it ends, and the same shape before its name."""
    colours, dashes, shapes = (_looks(looks, found) for looks in (RUNS, DASHES, SHAPES))
    own = alt.Color("run:N", legend=None, scale=colours)
    lines = chart_of(rows).mark_line(strokeCap="butt").encode(frame.x, frame.y(field), own, alt.Order("round:Q"))
    ends = chart_of(_ends(rows).values()).mark_point(size=80).encode(frame.x, frame.y(field), own)
    names = place_labels(_labels(rows, field, found), frame)
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
            labels.append(Label(f"{reached}\N{EN SPACE}{shorten(run.name)}{about}", end[field], run.name))
    return labels


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """A metric over seeds."""

    mean: float
    deviation: float  # standard deviation of the sample; 0 for one seed
    seeds: int  # number of seeds


@dataclass(frozen=True, slots=True)
class EpsilonLine:
    """Results of one choice of the other settings for each budget."""

    name: str  # name of the choice; empty if only epsilon was swept
    points: Sequence[tuple[float, SeedSpread]]  # budget epsilon, ascending and finite, and the result
    baseline: SeedSpread | None = None  # without privacy


def spread_of(values: Sequence[float]) -> SeedSpread:
    """Compute the mean of values over seeds, at least one, and their standard deviation."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return SeedSpread(mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0, len(values))


def sweep_figure(lines: Sequence[EpsilonLine], metric: str, width: int = WIDTH) -> alt.LayerChart:
    """Draw a metric against the budget epsilon, on a logarithmic axis: means, bands of a standard deviation, baselines.

    Args:
        lines: lines with at least one point among them; of more than `MOST_LINES` the first are drawn.
        metric: key of the metric.
        width: width of the plot between its axes, in px.

    Raises:
        ValueError: there is no point.
    """
    shown = [line for line in lines if line.points][:MOST_LINES]
    if not shown:
        raise ValueError("no run of the sweep has an epsilon to draw; sweep over several.")
    rows: Rows = [
        {"line": line.name, "epsilon": epsilon, **_band(spread)} for line in shown for epsilon, spread in line.points
    ]
    baselines: Rows = [{"line": line.name, **_band(line.baseline)} for line in shown if line.baseline]
    values = [row[end] for row in [*rows, *baselines] for end in ("low", "mean", "high")]
    low, high = min(values), max(values)  # close around the values, because differences must be visible
    margin = HEADROOM * (high - low) or HEADROOM
    percent = all(is_share(metric, min(max(value, 0.0), 1.0)) for value in values)
    frame = PlotFrame(_budget_axis(rows), Scale(low - margin, high + margin, percent), width)
    names = [line.name for line in shown]
    colour = alt.Color("line:N", legend=None).scale(domain=names, range=list(RUNS[: len(names)]))
    dash = alt.StrokeDash("line:N", legend=None).scale(domain=names, range=list(DASHES[: len(names)]))
    means, without = chart_of(rows).encode(frame.x, colour), chart_of(baselines).encode(colour)
    labels = place_labels(_sweep_labels(shown, metric), frame)
    layers = [
        without.mark_rect(opacity=0.1).encode(frame.y("low"), alt.Y2("high")),
        without.mark_rule(strokeDash=[2, 3], strokeWidth=1.5).encode(frame.y("mean")),
        means.mark_area(opacity=0.18).encode(frame.y("low"), alt.Y2("high")),
        means.mark_line().encode(frame.y("mean"), dash),
        means.mark_point().encode(frame.y("mean")),
        *leaders(labels, frame),
        chart_of(labels).mark_text().encode(frame.y("place"), alt.XValue(frame.labels_begin), alt.Text("text:N")),
    ]
    return with_style(layer(layers, _sweep_title(shown, metric, width), width))


def _band(spread: SeedSpread) -> dict[str, float]:
    return {"low": spread.mean - spread.deviation, "mean": spread.mean, "high": spread.mean + spread.deviation}


def _budget_axis(rows: Rows) -> alt.X:
    epsilons = sorted({row["epsilon"] for row in rows})
    axis = alt.Axis(values=epsilons, format="~g", grid=False, domain=True, labelFlush=False)
    room = 1.05 if len(epsilons) > 1 else 2.0
    domain = [epsilons[0] / room, epsilons[-1] * room]
    return alt.X("epsilon:Q").title("budget ε of each client").scale(type="log", domain=domain, nice=False).axis(axis)


def _sweep_labels(lines: Sequence[EpsilonLine], metric: str) -> list[Label]:
    """Label the end of each line, and each baseline."""
    labels = []
    for line in lines:
        about = f"\N{EN SPACE}{line.name}" if line.name else ""
        last = line.points[-1][1].mean
        labels.append(Label(f"{metric_text(metric, last)}{about}", last, line.name))
        if line.baseline:
            text = f"{metric_text(metric, line.baseline.mean)}\N{EN SPACE}{NO_PRIVACY}{about}"
            labels.append(Label(text, line.baseline.mean, line.name))
    return labels


def _sweep_title(lines: Sequence[EpsilonLine], metric: str, width: int) -> alt.TitleParams:
    best = (min if less_is_better(metric) else max)(lines, key=lambda line: line.points[-1][1].mean)
    first, last = best.points[0], best.points[-1]
    reached = [f"{metric_text(metric, spread.mean)} at ε {budget_text(epsilon)}" for epsilon, spread in (first, last)]
    without = best.baseline
    baseline = f"; {metric_text(metric, without.mean)} with {NO_PRIVACY}" if without else ""
    seeds = max(spread.seeds for line in lines for _, spread in line.points)
    about = [f"mean and standard deviation over {count_text(seeds, 'seed')}", measured_on(metric)]
    which = f" ({best.name})" if len(lines) > 1 else ""
    title = f"{metric_name(metric)} {' to '.join(dict.fromkeys(reached))}{which}{baseline}"
    return make_title(title[:1].upper() + title[1:], [about], width + (LABEL_ROOM if len(lines) > 1 else AXIS_ROOM))
