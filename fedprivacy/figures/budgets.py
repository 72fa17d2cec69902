"""Dashed lines at the clients' budgets."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from fedprivacy.figures.axes import Frame
from fedprivacy.figures.colours import INK
from fedprivacy.figures.labels import LABEL_GAP, spread_apart
from fedprivacy.figures.style import HEIGHT, Rows, chart_of, outlined
from fedprivacy.values.wording import budget_text

MOST_ACROSS = 6
"""Budgets that horizontal lines show; of more, the least and the largest."""

MOST_UPRIGHT = 3
"""Budgets that vertical lines show."""

DASHES = [5, 4]


def rules_across(budgets: Sequence[float], frame: Frame) -> alt.Chart:
    """Horizontal lines at budgets; finite, ascending."""
    rule: alt.Chart = chart_of(shown(budgets, MOST_ACROSS)).mark_rule(strokeDash=DASHES, color=INK)
    return rule.encode(frame.y("budget"))


def names_across(budgets: Sequence[float], frame: Frame) -> list[alt.Chart]:
    """Their names, above their left ends, to be drawn over all lines."""
    rows = shown(budgets, MOST_ACROSS)
    above, gap = frame.scale.length(8), frame.scale.length(LABEL_GAP)
    places = spread_apart([row["budget"] + above for row in rows], gap, above, frame.scale.high)
    base = chart_of([row | {"place": place} for row, place in zip(rows, places, strict=True)])
    return outlined(base.encode(frame.y("place"), x=alt.value(4), text="text:N"))


def rules_upright(budgets: Sequence[float], x: alt.X) -> alt.Chart:
    """Vertical lines at budgets; finite, ascending. `x` is the horizontal channel of the field `budget`."""
    rule: alt.Chart = chart_of(shown(budgets, MOST_UPRIGHT)).mark_rule(strokeDash=DASHES, color=INK)
    return rule.encode(x)


def names_upright(budgets: Sequence[float], x: alt.X, *, at_top: bool) -> list[alt.Chart]:
    """Their names, left of their upper or lower ends, one below the other, to be drawn over all lines."""
    layers = []
    for place, row in enumerate(shown(budgets, MOST_UPRIGHT)):
        below = (place + 0.5) * LABEL_GAP
        base = chart_of([row]).encode(x, y=alt.value(below if at_top else HEIGHT - below), text="text:N")
        layers += outlined(base, align="right", dx=-6)
    return layers


def shown(budgets: Sequence[float], most: int) -> Rows:
    """A row with `budget` and `text` for each, or for the least and the largest where there are more than `most`."""
    if len(budgets) <= most:
        return [{"budget": budget, "text": f"budget ε = {budget_text(budget)}"} for budget in budgets]
    return [
        {"budget": budget, "text": f"{which} of {len(budgets)} budgets, ε = {budget_text(budget)}"}
        for which, budget in (("least", budgets[0]), ("largest", budgets[-1]))
    ]
