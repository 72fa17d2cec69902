"""What a run's privacy loss bought: the metric against the largest epsilon of a client."""

from __future__ import annotations

import altair as alt

from fedprivacy.figures.axes import loss_scale, metric_scale
from fedprivacy.figures.budgets import names_upright, rules_upright
from fedprivacy.figures.colours import SPENDING
from fedprivacy.figures.meaning import COMPOSED, seen
from fedprivacy.figures.style import WIDTH, Rows, chart_of, layered, outlined, styled, titled
from fedprivacy.figures.tables import tradeoff_rows
from fedprivacy.values.series import RunSeries
from fedprivacy.values.wording import count_text, epsilon_text, metric_name, metric_text

ROOM = 60
"""What the axis takes beside the plot, and what a title may stick out, in px."""

MOST_DOTS = 100
"""More rounds than this are a line without dots."""

LOSS_TITLE = "largest ε of a client"


def tradeoff_figure(series: RunSeries, width: int = WIDTH) -> alt.LayerChart:
    """The task's metric against the largest epsilon of a client: a dot for each round, joined in their order.

    Args:
        series: the run.
        width: of the plot between its axes, in px.

    Raises:
        ValueError: the run has no finished round.
    """
    title = _title(series, width)
    rows = [row for row in tradeoff_rows(series) if None not in row.values()]
    losses = loss_scale([*(row["epsilon"] for row in rows), *series.budgets])
    values = metric_scale(series.facts.metric, [row["value"] for row in rows])
    x, y, budget_x = losses.x("epsilon").title(LOSS_TITLE), values.y("value"), losses.x("budget")
    low_end = bool(rows) and rows[-1]["value"] < (values.low + values.high) / 2
    layers = [
        rules_upright(series.budgets, budget_x),
        chart_of(rows).mark_line(color=SPENDING).encode(x, y, order="round:Q"),
        _dots(rows).encode(x, y),
        *names_upright(series.budgets, budget_x, at_top=low_end),
        *_last(rows, x, y),
    ]
    return styled(layered(layers, title, width))


def _title(series: RunSeries, width: int) -> alt.TitleParams:
    last, (epsilon, budget) = series.last, series.worst
    name, value = (
        metric_name(series.facts.metric),
        metric_text(series.facts.metric, last.metrics.get(series.facts.metric)),
    )
    what = [f"{name} on the server's public records after each round"]
    against = seen("against the largest ε of a client", series.facts.delta)
    title = f"After {count_text(last.round, 'round')}: {name} {value} for ε {epsilon_text(epsilon, budget)}"
    return titled(title, [[*what, *against, *COMPOSED]], width + ROOM)


def _dots(rows: Rows) -> alt.Chart:
    """One a round while there is room, and always the last."""
    shown = [
        row | {"loss": epsilon_text(row["epsilon"]), "reached": metric_text(row["metric"], row["value"])}
        for row in (rows if len(rows) <= MOST_DOTS else rows[-1:])
    ]
    named = {"round:Q": "round", "loss:N": LOSS_TITLE, "reached:N": "then reached"}
    dots: alt.Chart = chart_of(shown).mark_point(color=SPENDING, size=30)
    return dots.encode(tooltip=[alt.Tooltip(field, title=name) for field, name in named.items()])


def _last(rows: Rows, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """The name of the last round, above it: on the left of a line that rises, on the right of one that falls."""
    last = chart_of([row | {"text": f"round {row['round']}"} for row in rows[-1:]]).encode(x, y, text="text:N")
    falls = bool(rows) and rows[-1]["value"] < rows[0]["value"]
    return outlined(last, align="left" if falls else "right", dx=8 if falls else -8, dy=-10)
