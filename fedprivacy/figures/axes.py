"""The axes that figures share: rounds, privacy loss, a metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import altair as alt

from fedprivacy.figures.style import HEIGHT
from fedprivacy.values.wording import is_share

HEADROOM = 0.1
"""Free space beyond the largest value, as a share of the axis."""

PERCENT = "round(100 * datum.value) + '\u00a0%'"
"""A label in percent, in Vega's expression language."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from `low` to `high`, in the unit of its values; `percent`: they are shares of 1."""

    low: float
    high: float
    percent: bool = False

    def x(self, field: str) -> alt.X:
        """The horizontal channel of a field."""
        scaled = alt.X(f"{field}:Q").scale(domain=[self.low, self.high], nice=False)
        return scaled.axis(alt.Axis(tickCount=5, grid=False, domain=True, labelFlush=False))

    def y(self, field: str) -> alt.Y:
        """The vertical channel of a field; its axis has no title, because the figure's title says what it is."""
        scaled = alt.Y(f"{field}:Q").title(None).scale(domain=[self.low, self.high], nice=False)
        return scaled.axis(alt.Axis(tickCount=5, labelExpr=PERCENT) if self.percent else alt.Axis(tickCount=5))

    def length(self, px: float, height: int = HEIGHT) -> float:
        """What so many px of a plot of a height are worth."""
        return (self.high - self.low) * px / height


@dataclass(frozen=True, slots=True)
class Frame:
    """What the layers of a panel share: the horizontal channel, the vertical scale, the plot's width in px."""

    x: alt.X
    scale: Scale
    width: int

    def y(self, field: str) -> alt.Y:
        """The vertical channel of a field."""
        return self.scale.y(field)


def loss_scale(epsilons: Iterable[float]) -> Scale:
    """From 0 to above the largest finite epsilon; to 1 without one."""
    return Scale(0.0, (1 + HEADROOM) * max(filter(math.isfinite, epsilons), default=1.0) or 1.0)


def metric_scale(metric: str, values: Sequence[float]) -> Scale:
    """From 0 to 100 % for an accuracy; else around the values, from 0 where that wastes less than half the axis.

    Args:
        metric: its key.
        values: finite.
    """
    if all(is_share(metric, value) for value in values):
        return Scale(0.0, 1 + HEADROOM, percent=True)
    low, high = min(values), max(values)
    low = 0.0 if 0.0 <= low <= high / 2 else low
    margin = HEADROOM * (high - low) or 1.0
    return Scale(low - margin * (low != 0.0), high + margin)


def rounds_axis(last: int) -> alt.X:
    """The horizontal channel of the field `round`, from 0 to the last, labelled at whole rounds."""
    step = next(step for step in whole_steps() if last <= 7 * step)
    axis = alt.Axis(format="d", values=list(range(0, last + 1, step)), grid=False, domain=True, labelFlush=False)
    return alt.X("round:Q").title("round").scale(domain=[0, last], nice=False).axis(axis)


def whole_steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    return (digit * 10**power for power in count() for digit in (1, 2, 5))
