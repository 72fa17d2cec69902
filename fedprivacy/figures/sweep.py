"""Figure of a sweep: a metric against epsilon, its mean and standard deviation over seeds, beside the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import AXIS_ROOM, HEADROOM, LABEL_ROOM, Label, PlotFrame, Scale, leaders, placed
from fedprivacy.figures.comparison import DASHES
from fedprivacy.figures.style import RUNS, WIDTH, Rows, chart_of, layered, styled, titled
from fedprivacy.values.metrics import measured_on
from fedprivacy.values.wording import (
    NO_PRIVACY,
    budget_text,
    count_text,
    is_share,
    less_is_better,
    metric_name,
    metric_text,
)

MOST_LINES = len(RUNS)
"""Maximum number of settings besides epsilon that have a line of their own; of more, the first."""


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
    rows, baselines = _point_rows(shown), _baseline_rows(shown)
    frame = PlotFrame(_x(rows), _scale(metric, [row[end] for row in [*rows, *baselines] for end in _ENDS]), width)
    names = [line.name for line in shown]
    colour = alt.Color("line:N", legend=None).scale(domain=names, range=list(RUNS[: len(names)]))
    dash = alt.StrokeDash("line:N", legend=None).scale(domain=names, range=list(DASHES[: len(names)]))
    means, without = chart_of(rows).encode(frame.x, colour), chart_of(baselines).encode(colour)
    labels = placed(_labels(shown, metric), frame)
    layers = [
        without.mark_rect(opacity=0.1).encode(frame.y("low"), alt.Y2("high")),
        without.mark_rule(strokeDash=[2, 3], strokeWidth=1.5).encode(frame.y("mean")),
        means.mark_area(opacity=0.18).encode(frame.y("low"), alt.Y2("high")),
        means.mark_line().encode(frame.y("mean"), dash),
        means.mark_point().encode(frame.y("mean")),
        *leaders(labels, frame),
        chart_of(labels).mark_text().encode(frame.y("place"), alt.XValue(frame.labels_begin), alt.Text("text:N")),
    ]
    return styled(layered(layers, _title(shown, metric, width), width))


_ENDS = ("low", "mean", "high")


def _scale(metric: str, values: Sequence[float]) -> Scale:
    """Make a scale close around the values, because differences must be visible."""
    low, high = min(values), max(values)
    margin = HEADROOM * (high - low) or HEADROOM
    percent = all(is_share(metric, min(max(value, 0.0), 1.0)) for value in values)
    return Scale(low - margin, high + margin, percent)


def _point_rows(lines: Sequence[EpsilonLine]) -> Rows:
    return [
        {"line": line.name, "epsilon": epsilon, **_band(spread)} for line in lines for epsilon, spread in line.points
    ]


def _baseline_rows(lines: Sequence[EpsilonLine]) -> Rows:
    return [{"line": line.name, **_band(line.baseline)} for line in lines if line.baseline]


def _band(spread: SeedSpread) -> dict[str, float]:
    return {"low": spread.mean - spread.deviation, "mean": spread.mean, "high": spread.mean + spread.deviation}


def _x(rows: Rows) -> alt.X:
    epsilons = sorted({row["epsilon"] for row in rows})
    axis = alt.Axis(values=epsilons, format="~g", grid=False, domain=True, labelFlush=False)
    room = 1.05 if len(epsilons) > 1 else 2.0
    domain = [epsilons[0] / room, epsilons[-1] * room]
    return alt.X("epsilon:Q").title("budget ε of each client").scale(type="log", domain=domain, nice=False).axis(axis)


def _labels(lines: Sequence[EpsilonLine], metric: str) -> list[Label]:
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


def _title(lines: Sequence[EpsilonLine], metric: str, width: int) -> alt.TitleParams:
    best = (min if less_is_better(metric) else max)(lines, key=lambda line: line.points[-1][1].mean)
    first, last = best.points[0], best.points[-1]
    reached = [f"{metric_text(metric, spread.mean)} at ε {budget_text(epsilon)}" for epsilon, spread in (first, last)]
    without = best.baseline
    baseline = f"; {metric_text(metric, without.mean)} with {NO_PRIVACY}" if without else ""
    seeds = max(spread.seeds for line in lines for _, spread in line.points)
    about = [f"mean and standard deviation over {count_text(seeds, 'seed')}", measured_on(metric)]
    which = f" ({best.name})" if len(lines) > 1 else ""
    title = f"{metric_name(metric)} {' to '.join(dict.fromkeys(reached))}{which}{baseline}"
    return titled(title[:1].upper() + title[1:], [about], width + (LABEL_ROOM if len(lines) > 1 else AXIS_ROOM))


def spread_of(values: Sequence[float]) -> SeedSpread:
    """Compute the mean of values over seeds, at least one, and their standard deviation."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return SeedSpread(mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0, len(values))
