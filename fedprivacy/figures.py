"""Figures of a run: one Vega-Lite definition for page, report, notebook and PNG.

Every figure is an Altair chart with its data inside: it shows itself in a notebook, `to_dict()` is what a web page
embeds, and `save_png` and `to_svg` draw it without a browser and without a network. Blue is privacy loss that can
still grow, vermilion is a spent budget; a diamond marks the change, so that colour is never the only sign.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import numpy as np
from scipy.optimize import isotonic_regression

from fedprivacy.accountant import ClientSpent
from fedprivacy.history import RunHistory
from fedprivacy.rounds import RoundRecord
from fedprivacy.wording import (
    budget_text,
    count_text,
    delta_text,
    epsilon_text,
    is_share,
    metric_name,
    metric_text,
    task_name,
)

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#e4e8ec", "#ffffff"
SPENDING, EXHAUSTED = "#0072b2", "#c04a00"

DARK = {
    INK: "#e6edf3",
    MUTED: "#9da7b3",
    GRID: "#2d343c",
    PAPER: "#12161b",
    SPENDING: "#56b4e9",
    EXHAUSTED: "#f0883e",
}
"""Every colour of the figures, and the one that takes its place on a dark page."""

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""vl-convert carries the first and measures texts with it; the others are as wide."""

WIDTH = 440
HEIGHT = 330
LONGEST_NAME = 20
LABEL_GAP = 15.0
HEADROOM = 0.1

MOST_CURVES = 20
"""More different curves than this are drawn as a fan."""

MOST_ROUNDS = 500
"""More rounds than this are thinned: a plot has no more pixels."""

Rows = list[dict[str, Any]]

Figure = TypeVar("Figure", alt.LayerChart, alt.HConcatChart)


def run_figure(history: RunHistory) -> alt.HConcatChart:
    """The run at a glance, about 1200 px wide: `accuracy_figure` and `epsilon_figure` side by side.

    Raises:
        ValueError: the history has no finished round.
    """
    return styled(alt.hconcat(_metric_panel(history, WIDTH), _epsilon_panel(history, WIDTH), spacing=40))


def accuracy_figure(history: RunHistory, width: int = WIDTH) -> alt.LayerChart:
    """The task's first metric after every round; in percent if it is an accuracy.

    Args:
        history: the run.
        width: of the plot between its axes, in px.

    Raises:
        ValueError: the history has no finished round.
    """
    return styled(_metric_panel(history, width))


def epsilon_figure(history: RunHistory, width: int = WIDTH) -> alt.LayerChart:
    """Every client's epsilon after every round, against its budget.

    Clients with the same curve share a line that says how many they are. More than 20 different curves become a fan:
    the range of all clients, their middle half, and the lines of those that spent most, least and the median.

    Args:
        history: the run.
        width: of the plot between its axes, in px.

    Raises:
        ValueError: the history has no finished round.
    """
    return styled(_epsilon_panel(history, width))


def save_png(chart: alt.TopLevelMixin, path: Path, scale: float = 2.0) -> None:
    """Draw the chart into a PNG file, with `scale` pixels for each px of the figure."""
    chart.save(str(path), format="png", scale_factor=scale)


def to_svg(chart: alt.TopLevelMixin) -> str:
    """The chart as an `<svg>` element. Texts stay texts, and the keys of `DARK` are its only colours."""
    drawing = StringIO()
    chart.save(drawing, format="svg")
    return drawing.getvalue()


def _metric_panel(history: RunHistory, width: int) -> alt.LayerChart:
    rounds = _shown(history)
    rows: Rows = [{"round": record.round, "value": record.metrics.get(history.metric)} for record in rounds]
    measured = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    x, y = _x(rounds), _metric_y(history.metric, [row["value"] for row in measured])
    line = chart_of(rows).mark_line(color=SPENDING).encode(x, y)
    end = chart_of([row | {"text": metric_text(history.metric, row["value"])} for row in measured[-1:]]).encode(x, y)
    title = alt.TitleParams(
        f"After {count_text(rounds[-1].round, 'round')}: "
        f"{metric_name(history.metric)} {metric_text(history.metric, rows[-1]['value'])}",
        subtitle=[f"task {task_name(history)}, global model on the server's public records,", "after each round"],
    )
    label = end.mark_text(dx=10, fontWeight="bold").encode(text="text:N")
    return layered([line, end.mark_point(color=SPENDING), label], title, width)


def _metric_y(metric: str, values: Sequence[float]) -> alt.Y:
    """From 0 to 100 % for an accuracy; else around the values, from 0 where that wastes less than half the axis."""
    y = alt.Y("value:Q").title(None)
    if all(is_share(metric, value) for value in values):
        percent = alt.Axis(tickCount=5, labelExpr="round(100 * datum.value) + '\u00a0%'")
        return y.scale(domain=[0, 1 + HEADROOM], nice=False).axis(percent)
    low, high = min(values), max(values)
    low = 0.0 if 0.0 <= low <= high / 2 else low
    margin = HEADROOM * (high - low) or 1.0
    return y.scale(domain=[low - margin * (low != 0.0), high + margin], nice=False).axis(tickCount=5)


def _epsilon_panel(history: RunHistory, width: int) -> alt.LayerChart:
    rounds = _shown(history)
    curves = _curves(rounds)
    budgets = sorted({c.budget_epsilon for c in rounds[-1].spent.values() if math.isfinite(c.budget_epsilon)})
    largest = [e for curve in curves for e in curve.epsilons if math.isfinite(e)] + budgets
    frame = _Frame(_x(rounds), width, top=(1 + HEADROOM) * max(largest, default=1.0) or 1.0)
    fan = len(curves) > MOST_CURVES
    drawn = _fan(rounds, curves, frame) if fan else _lines(curves, frame)
    title = alt.TitleParams(_epsilon_title(rounds[-1].spent), subtitle=_epsilon_subtitle(history, fan))
    return layered([*_budget_rules(budgets, frame), *drawn], title, width)


def _epsilon_title(spent: Mapping[str, ClientSpent]) -> str:
    worst = max(spent.values(), key=lambda client: client.epsilon)
    limit = (
        f" of budget {budget_text(worst.budget_epsilon)}" if math.isfinite(worst.budget_epsilon) else ", no budget set"
    )
    exhausted = sum(client.exhausted for client in spent.values())
    share = f"all {exhausted}" if exhausted == len(spent) > 1 else f"{exhausted} of {len(spent)}"
    state = f"; {share} {'client' if len(spent) == 1 else 'clients'} exhausted" if exhausted else ""
    return f"Largest privacy loss: ε {epsilon_text(worst.epsilon, worst.budget_epsilon)}{limit}{state}"


def _epsilon_subtitle(history: RunHistory, fan: bool) -> list[str]:
    seen = f"ε of each client as seen by the server, δ = {delta_text(history.settings['delta'])}, PLD accountant,"
    bands = "; bands: all clients and their middle half, diamonds: exhausted" if fan else ""
    return [seen, f"composed over all rounds and runs, an odometer's reading{bands}"]


@dataclass(frozen=True, slots=True)
class _Curve:
    """The epsilon of clients that are alike in every round.

    Attributes:
        client_ids: who they are.
        rounds: since they were enrolled.
        epsilons: after each of those rounds.
        exhausted_in: the first of those rounds after which no step was left.
        budget: their epsilon budget, maybe infinite.
    """

    client_ids: tuple[str, ...]
    rounds: tuple[int, ...]
    epsilons: tuple[float, ...]
    exhausted_in: int | None
    budget: float

    @property
    def name(self) -> str:
        """A client's own name, its middle left out if it is long, or how many share the curve."""
        name = self.client_ids[0] if len(self.client_ids) == 1 else count_text(len(self.client_ids), "client")
        return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[1 - LONGEST_NAME // 2 :]}"

    @property
    def state(self) -> str:
        """In the end."""
        return "spending" if self.exhausted_in is None else "exhausted"

    def rows(self) -> Rows:
        """The part that grows and, from exhaustion on, the flat part; they share the point between them."""
        turn = math.inf if self.exhausted_in is None else self.exhausted_in
        points = list(zip(self.rounds, self.epsilons, strict=True))
        parts = {"spending": [p for p in points if p[0] <= turn], "exhausted": [p for p in points if p[0] >= turn]}
        return [
            {"round": number, "epsilon": epsilon, "state": state, "part": f"{state} {self.client_ids[0]}"}
            for state, part in parts.items()
            for number, epsilon in part
        ]


def _curves(rounds: Sequence[RoundRecord]) -> list[_Curve]:
    """One curve for all clients that are alike; the largest final epsilon first, and of equals the first exhausted."""
    alike: dict[tuple[tuple[int, ...], tuple[float, ...], int | None, float], list[str]] = defaultdict(list)
    for client_id, last in rounds[-1].spent.items():
        known = [(record.round, record.spent[client_id]) for record in rounds if client_id in record.spent]
        numbers, epsilons = tuple(number for number, _ in known), tuple(client.epsilon for _, client in known)
        exhausted_in = next((number for number, client in known if client.exhausted), None)
        alike[numbers, epsilons, exhausted_in, last.budget_epsilon].append(client_id)
    curves = [_Curve(tuple(client_ids), *curve) for curve, client_ids in alike.items()]
    return sorted(curves, key=lambda curve: (-curve.epsilons[-1], curve.exhausted_in or math.inf))


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the layers of the epsilon panel share: the x channel, the plot's width in px, the top of the y axis."""

    x: alt.X
    width: int
    top: float

    @property
    def y(self) -> alt.Y:
        """The y channel."""
        return self.y_of("epsilon")

    def y_of(self, field: str) -> alt.Y:
        """The y channel for another field."""
        return alt.Y(f"{field}:Q").title(None).scale(domain=[0, self.top], nice=False).axis(tickCount=5)


def _budget_rules(budgets: Sequence[float], frame: _Frame) -> list[alt.Chart]:
    base = chart_of([{"epsilon": budget, "text": f"budget ε = {budget_text(budget)}"} for budget in budgets])
    rule = base.mark_rule(strokeDash=[5, 4], color=INK).encode(frame.y)
    label = base.mark_text(dy=-8, fontWeight="bold").encode(frame.y, x=alt.value(4), text="text:N")
    return [rule, label]


_STATE_COLOUR = alt.Color("state:N", legend=None).scale(domain=["spending", "exhausted"], range=[SPENDING, EXHAUSTED])


def _lines(curves: Sequence[_Curve], frame: _Frame) -> list[alt.Chart]:
    """A line for each curve, named where it ends."""
    names = [_Label.of(curve, curve.name) for curve in curves]
    return [*_strokes(curves, frame), *_labels(names, frame)]


def _fan(rounds: Sequence[RoundRecord], curves: Sequence[_Curve], frame: _Frame) -> list[alt.Chart]:
    """Bands for all clients and for their middle half, the median, and the clients that spent most and least."""
    bands = chart_of([{"round": record.round, **_quantiles(record)} for record in rounds])
    median = chart_of([{"round": record.round, "epsilon": _quantiles(record)["median"]} for record in rounds])
    outer = [curves[0], curves[-1]]
    return [
        bands.mark_area(color=SPENDING, opacity=0.15).encode(frame.x, frame.y_of("least"), y2="most"),
        bands.mark_area(color=SPENDING, opacity=0.25).encode(frame.x, frame.y_of("quarter"), y2="three_quarters"),
        median.mark_line(color=SPENDING, strokeWidth=3).encode(frame.x, frame.y),
        *_strokes(outer, frame),
        _exhaustions(curves[1:-1], frame),
        *_labels(_fan_labels(rounds[-1], outer), frame),
    ]


def _quantiles(record: RoundRecord) -> dict[str, float]:
    epsilons = [client.epsilon for client in record.spent.values()]
    names = ("least", "quarter", "median", "three_quarters", "most")
    return dict(zip(names, np.quantile(epsilons, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist(), strict=True))


def _fan_labels(last: RoundRecord, outer: Sequence[_Curve]) -> list[_Label]:
    median = _quantiles(last)["median"]
    most, least = (
        _Label.of(curve, f"{word}: {curve.name}") for word, curve in zip(("most", "least"), outer, strict=True)
    )
    labels = [most, _Label(f"{epsilon_text(median)}\N{EN SPACE}median", median, "spending"), least]
    if last.exhausted:
        labels.insert(0, _Label(f"{count_text(len(last.exhausted), 'client')} exhausted", most.epsilon, "exhausted"))
    return labels


def _strokes(curves: Sequence[_Curve], frame: _Frame) -> list[alt.Chart]:
    """Lines, with a dot where a client could go on and a diamond where its budget was exhausted."""
    thickness = 2.5 if len(curves) <= 6 else 1.75
    lines = chart_of([row for curve in curves for row in curve.rows()]).mark_line(strokeWidth=thickness)
    dots = chart_of([curve.rows()[-1] for curve in curves if curve.state == "spending"]).mark_point()
    return [
        lines.encode(frame.x, frame.y, _STATE_COLOUR, detail="part:N"),
        dots.encode(frame.x, frame.y, _STATE_COLOUR),
        _exhaustions(curves, frame),
    ]


def _exhaustions(curves: Sequence[_Curve], frame: _Frame) -> alt.Chart:
    turns = [next(row for row in c.rows() if row["state"] == "exhausted") for c in curves if c.state == "exhausted"]
    diamonds: alt.Chart = chart_of(turns).mark_point(shape="diamond", size=90).encode(frame.x, frame.y, _STATE_COLOUR)
    return diamonds


@dataclass(frozen=True, slots=True)
class _Label:
    """A text beside the plot that names what ends at an epsilon."""

    text: str
    epsilon: float
    state: str

    @classmethod
    def of(cls, curve: _Curve, name: str) -> _Label:
        """What the curve spent, in a column with the other labels, and whose it is."""
        epsilon = curve.epsilons[-1]
        exhausted = "" if curve.state == "spending" else " exhausted"
        return cls(f"{epsilon_text(epsilon, curve.budget)}\N{EN SPACE}{name}{exhausted}", epsilon, curve.state)


def _labels(labels: Sequence[_Label], frame: _Frame) -> list[alt.Chart]:
    """Texts on the right, moved apart so that all can be read, each led to its epsilon by a thin line."""
    finite = [label for label in labels if math.isfinite(label.epsilon)]
    gap = frame.top * LABEL_GAP / HEIGHT
    places = spread_apart([label.epsilon for label in finite], gap, low=gap / 2, high=frame.top - gap / 2)
    rows = [
        {"epsilon": label.epsilon, "place": place, "text": label.text, "state": label.state}
        for label, place in zip(finite, places, strict=True)
    ]
    leaders = chart_of(rows).mark_rule(color=MUTED, strokeWidth=0.75)
    texts = chart_of(rows).mark_text()
    return [
        leaders.encode(frame.y, x=alt.value(frame.width + 7), x2=alt.value(frame.width + 20), y2="place"),
        texts.encode(frame.y_of("place"), _STATE_COLOUR, x=alt.value(frame.width + 24), text="text:N"),
    ]


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places in [low, high], at least `gap` apart, in the order of the wanted ones and as near to them as can be.

    With the gaps below each place taken off, what is left must only not decrease: an isotonic regression. Equal ones
    are stacked downwards in the order given.
    """
    if not wanted:
        return []
    upwards = np.lexsort((-np.arange(len(wanted)), np.asarray(wanted)))
    below = gap * np.arange(len(wanted))
    without_gaps = isotonic_regression(np.asarray(wanted)[upwards] - below).x
    places = np.empty(len(wanted))
    places[upwards] = np.clip(without_gaps, low, max(low, high - below[-1])) + below
    return [float(place) for place in places]


def _shown(history: RunHistory) -> list[RoundRecord]:
    """The rounds to draw: all, or every so many; always the last."""
    if not history.rounds:
        raise ValueError("the run has no finished round to draw; wait for its first.")
    step = math.ceil(len(history.rounds) / MOST_ROUNDS)
    return list(history.rounds[::-step][::-1])


def _x(rounds: Sequence[RoundRecord]) -> alt.X:
    last = rounds[-1].round
    step = next(step for step in _whole_steps() if last <= 7 * step)
    axis = alt.Axis(format="d", values=list(range(0, last + 1, step)), grid=False, domain=True, labelFlush=False)
    return alt.X("round:Q").title("round").scale(domain=[0, last], nice=False).axis(axis)


def _whole_steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    return (digit * 10**power for power in count() for digit in (1, 2, 5))


def chart_of(rows: Iterable[Mapping[str, Any]]) -> alt.Chart:
    """A chart without marks, its data inside; what JSON cannot say (infinity, not a number) is left out of it."""
    finite = [{k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()} for row in rows]
    return alt.Chart(alt.InlineData(values=finite))


def layered(layers: list[alt.Chart], title: alt.TitleParams, width: int) -> alt.LayerChart:
    """Layers as one panel, of the height that all panels have."""
    return alt.LayerChart(layer=layers, title=title, width=width, height=HEIGHT)


def styled(chart: Figure) -> Figure:
    """The figure in the look that all figures share."""
    styled: Figure = chart.configure(
        font=FONT,
        background=PAPER,
        padding=16,
        view=alt.ViewConfig(stroke=None),
        title=alt.TitleConfig(
            anchor="start",
            color=INK,
            fontSize=16,
            subtitleColor=MUTED,
            subtitleFontSize=12,
            subtitlePadding=5,
            offset=16,
        ),
        axis=alt.AxisConfig(
            domain=False,
            domainColor=MUTED,
            gridColor=GRID,
            labelColor=MUTED,
            labelFontSize=12,
            tickColor=MUTED,
            ticks=False,
            labelPadding=6,
            titleColor=MUTED,
            titleFontSize=12,
            titleFontWeight="normal",
        ),
        line=alt.LineConfig(strokeWidth=2.5, strokeCap="round", strokeJoin="round"),
        point=alt.MarkConfig(filled=True, size=55, opacity=1),
        text=alt.MarkConfig(align="left", baseline="middle", color=INK, fontSize=12.5),
    )
    return styled
