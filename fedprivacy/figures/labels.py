"""Names beside a plot, each at the height where its line ends, moved apart so that all can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import altair as alt
import numpy as np
from scipy.optimize import isotonic_regression

from fedprivacy.figures.axes import Frame
from fedprivacy.figures.colours import MUTED
from fedprivacy.figures.style import HEIGHT, Rows, chart_of

LONGEST_NAME = 20
"""Of a client or a run, in characters."""

LABEL_GAP = 15.0
"""From one label to the next, in px."""

MOST_LABELS = int(HEIGHT / LABEL_GAP)
"""Beside a plot: more have no room."""

LEADER = (7, 20)
"""Where the line that leads to a label begins and ends, in px right of the plot."""

BESIDE_LABEL = 24
"""Where a label begins, in px right of the plot."""

ROOM = 200
"""What the labels and the axis of a plot take beside it, in px: a little less than the longest of them."""


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside the plot that names what ends at a value.

    Attributes:
        text: what it says.
        value: on the vertical axis.
        kind: what decides its colour.
        emphasised: somebody asked for it.
    """

    text: str
    value: float
    kind: str
    emphasised: bool = False


def placed(labels: Sequence[Label], frame: Frame) -> Rows:
    """A row for each label that has a finite value and room, those that somebody asked for first.

    `place` is its height on the vertical axis, as near to `value` as the others allow.
    """
    finite = [label for label in labels if math.isfinite(label.value)]
    first = sorted(range(len(finite)), key=lambda place: not finite[place].emphasised)
    kept = [finite[place] for place in sorted(first[:MOST_LABELS])]
    gap = frame.scale.length(LABEL_GAP)
    low, high = frame.scale.low + gap / 2, frame.scale.high - gap / 2
    places = spread_apart([label.value for label in kept], gap, low, high)
    return [asdict(label) | {"place": place} for label, place in zip(kept, places, strict=True)]


def leaders(rows: Rows, frame: Frame) -> alt.Chart:
    """Thin lines from where the named lines end to their labels."""
    begin, end = (alt.value(frame.width + px) for px in LEADER)
    lines = chart_of(rows).mark_rule(color=MUTED, strokeWidth=0.75)
    encoded: alt.Chart = lines.encode(frame.y("value"), x=begin, x2=end, y2="place")
    return encoded


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


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """A name whole, or its two ends: what tells names apart is often their end."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[1 - most // 2 :]}"
