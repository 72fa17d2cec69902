"""Axes that figures share, and the labels along them: lines beside a plot, budgets across it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count

import numpy as np
from scipy.optimize import isotonic_regression

from fedprivacy._support.altair import alt
from fedprivacy.figures.style import HEIGHT, INK, MUTED, Rows, chart_of, outlined_texts
from fedprivacy.values.wording import budget_text, is_share

HEADROOM = 0.1
"""Free space beyond the largest value, as a share of the axis."""

_PERCENT = "round(100 * datum.value) + '\u00a0%'"
"""A label in percent, in Vega's expression language."""

LABEL_GAP = 15.0
"""Distance from one label to the next, in px."""

_MOST_LABELS = int(HEIGHT / LABEL_GAP)
"""Maximum number of labels beside a plot; there is no room for more."""

LEADER, BESIDE_LABEL = (7, 20), 24
"""Beginning and end of the line that leads to a label, and beginning of the label, in px right of the plot."""

_UNDER_AXIS = 58
"""Distance of the first label from the plot, in px, where labels stand below its horizontal axis."""

LABEL_ROOM, AXIS_ROOM = 200, 60
"""Room for labels and axis beside a plot, in px (a little less than the longest labels), and for the axis alone."""

MOST_ACROSS, MOST_UPRIGHT = 6, 3
"""Maximum number of budgets that horizontal and vertical lines show; of more, the smallest and the largest."""

DASHES = [5, 4]


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from `low` to `high`, in the unit of its values.

    `percent`: they are shares of 1.
    """

    low: float
    high: float
    percent: bool = False

    def x(self, field: str) -> alt.X:
        """Return the horizontal channel of a field."""
        scaled = alt.X(f"{field}:Q").scale(domain=[self.low, self.high], nice=False)
        return scaled.axis(alt.Axis(tickCount=5, grid=False, domain=True, labelFlush=False))

    def y(self, field: str) -> alt.Y:
        """Return the vertical channel of a field; its axis has no title, because the figure's title names it."""
        scaled = alt.Y(f"{field}:Q").title(None).scale(domain=[self.low, self.high], nice=False)
        return scaled.axis(alt.Axis(tickCount=5, labelExpr=_PERCENT) if self.percent else alt.Axis(tickCount=5))

    def length(self, px: float) -> float:
        """Convert px of a plot's height to the unit of the scale."""
        return (self.high - self.low) * px / HEIGHT


@dataclass(frozen=True, slots=True)
class PlotFrame:
    """Parts that the layers of a panel share: horizontal channel, vertical scale, and the plot's width in px.

    `below`: labels stand below the horizontal axis, for narrow screens, instead of beside the plot.
    """

    x: alt.X
    scale: Scale
    width: int
    below: bool = False

    @property
    def room(self) -> int:
        """Width of the plot with its axis and labels, in px."""
        return self.width + (AXIS_ROOM if self.below else LABEL_ROOM)

    @property
    def labels_begin(self) -> int:
        """Distance of the labels from the left edge of the plot, in px."""
        return 0 if self.below else self.width + BESIDE_LABEL

    def y(self, field: str) -> alt.Y:
        """Return the vertical channel of a field."""
        return self.scale.y(field)


def loss_scale(epsilons: Iterable[float]) -> Scale:
    """Make a scale from 0 to above the largest finite epsilon; to 1 if there is none."""
    return Scale(0.0, (1 + HEADROOM) * max(filter(math.isfinite, epsilons), default=1.0) or 1.0)


def metric_scale(metric: str, values: Sequence[float]) -> Scale:
    """Make a scale from 0 to 100 % for an accuracy, else around the values; from 0 if that wastes less than half."""
    if all(is_share(metric, value) for value in values):
        return Scale(0.0, 1 + HEADROOM, percent=True)
    low, high = min(values), max(values)
    low = 0.0 if 0.0 <= low <= high / 2 else low
    margin = HEADROOM * (high - low) or 1.0
    return Scale(low - margin * (low != 0.0), high + margin)


def rounds_axis(last: int) -> alt.X:
    """Return the horizontal channel of the field `round`, from 0 to the last, labelled at whole rounds."""
    labelled = list(range(0, last + 1, label_step(last)))
    axis = alt.Axis(format="d", values=labelled, grid=False, domain=True, labelFlush=False)
    return alt.X("round:Q").title("round").scale(domain=[0, last], nice=False).axis(axis)


def label_step(span: int) -> int:
    """Return the interval between labelled rounds: 1, 2, 5, 10, 20, 50, ..."""
    steps: Iterator[int] = (digit * 10**power for power in count() for digit in (1, 2, 5))
    return next(step for step in steps if span <= 7 * step)


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside the plot that names the line ending at a value; `kind` decides its colour.

    `emphasised`: the user asked for it.
    """

    text: str
    value: float
    kind: str
    emphasised: bool = False


def place_labels(labels: Sequence[Label], frame: PlotFrame) -> Rows:
    """Place the labels that have a finite value and room, those that the user asked for first; one row each.

    `place` is the height on the vertical axis, as near to `value` as the others allow. Labels below the plot form a
    list, the largest value first.
    """
    finite = [label for label in labels if math.isfinite(label.value)]
    first = sorted(range(len(finite)), key=lambda place: not finite[place].emphasised)
    kept = [finite[place] for place in sorted(first[:_MOST_LABELS])]
    gap = frame.scale.length(LABEL_GAP)
    if frame.below:
        top = frame.scale.low - frame.scale.length(_UNDER_AXIS)
        listed = enumerate(sorted(kept, key=lambda label: -label.value))
        return [asdict(label) | {"place": top - gap * line} for line, label in listed]
    low, high = frame.scale.low + gap / 2, frame.scale.high - gap / 2
    places = spread_apart([label.value for label in kept], gap, low, high)
    return [asdict(label) | {"place": place} for label, place in zip(kept, places, strict=True)]


def leaders(rows: Rows, frame: PlotFrame) -> list[alt.Chart]:
    """Draw thin lines from the ends of named lines to their labels beside the plot."""
    if frame.below:
        return []
    begin, end = (frame.width + px for px in LEADER)
    lines: alt.Chart = chart_of(rows).mark_rule(color=MUTED, strokeWidth=0.75)
    return [lines.encode(frame.y("value"), alt.XValue(begin), alt.X2Value(end), alt.Y2("place"))]


def named_beside(rows: Rows, frame: PlotFrame, colours: alt.Scale, shapes: alt.Scale) -> list[alt.Chart]:
    """Draw the labels of `place_labels`, with lines that lead to them, each after a mark in the look of its kind."""
    beside = chart_of(rows).encode(frame.y("place"))
    marks = beside.mark_point(size=60).encode(
        alt.Color("kind:N", legend=None, scale=colours), alt.Shape("kind:N", legend=None, scale=shapes)
    )
    return [
        *leaders(rows, frame),
        marks.encode(alt.XValue(frame.labels_begin + 5)),
        beside.mark_text().encode(alt.XValue(frame.labels_begin + 16), alt.Text("text:N")),
    ]


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places in [low, high], at least `gap` apart, in the order of the wanted ones and as near to them as
    possible.

    After subtracting the gaps below each place, the places must only not decrease: an isotonic regression. Equal ones
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


def shorten(name: str, most: int = 20) -> str:
    """Shorten a name to its two ends if it is longer than `most` characters: names often differ at the end."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[1 - most // 2 :]}"


def rules_across(budgets: Sequence[float], frame: PlotFrame) -> alt.Chart:
    """Draw dashed horizontal lines at budgets; finite, ascending."""
    return _rules(_budget_rows(budgets, MOST_ACROSS), frame.y("budget"))


def names_across(budgets: Sequence[float], frame: PlotFrame) -> list[alt.Chart]:
    """Write the names of horizontal lines above their left ends, to be drawn over all lines."""
    rows = _budget_rows(budgets, MOST_ACROSS)
    above, gap = frame.scale.length(8), frame.scale.length(LABEL_GAP)
    places = spread_apart([row["budget"] + above for row in rows], gap, above, frame.scale.high)
    base = chart_of([row | {"place": place} for row, place in zip(rows, places, strict=True)])
    return outlined_texts(base.encode(frame.y("place"), alt.XValue(4), alt.Text("text:N")))


def rules_upright(budgets: Sequence[float], x: alt.X) -> alt.Chart:
    """Draw dashed vertical lines at budgets; finite, ascending. `x` is the horizontal channel of the field `budget`."""
    return _rules(_budget_rows(budgets, MOST_UPRIGHT), x)


def names_upright(budgets: Sequence[float], x: alt.X, *, at_top: bool) -> list[alt.Chart]:
    """Write the names of vertical lines left of their upper or lower ends, one below the other, over all lines."""
    layers = []
    for place, row in enumerate(_budget_rows(budgets, MOST_UPRIGHT)):
        below = (place + 0.5) * LABEL_GAP
        base = chart_of([row]).encode(x, alt.YValue(below if at_top else HEIGHT - below), alt.Text("text:N"))
        layers += outlined_texts(base, align="right", dx=-6)
    return layers


def _rules(rows: Rows, channel: alt.X | alt.Y) -> alt.Chart:
    rules: alt.Chart = chart_of(rows).mark_rule(strokeDash=DASHES, color=INK)
    return rules.encode(channel)


def _budget_rows(budgets: Sequence[float], most: int) -> Rows:
    """Return a row with `budget` and `text` for each budget, or for the smallest and largest of more than `most`."""
    if len(budgets) <= most:
        return [{"budget": budget, "text": f"budget ε = {budget_text(budget)}"} for budget in budgets]
    return [
        {"budget": budget, "text": f"{which} of {len(budgets)} budgets, ε = {budget_text(budget)}"}
        for which, budget in (("least", budgets[0]), ("largest", budgets[-1]))
    ]
