"""The task's metric after every round."""

from __future__ import annotations

import altair as alt

from fedprivacy.figures.axes import Frame, metric_scale, rounds_axis
from fedprivacy.figures.colours import SPENDING
from fedprivacy.figures.style import WIDTH, chart_of, layered, styled, titled
from fedprivacy.figures.tables import metric_rows
from fedprivacy.values.series import RunSeries
from fedprivacy.values.wording import count_text, metric_name, metric_text

ROOM = 60
"""What the axis and the label at the line's end take beside the plot, in px."""


def metric_figure(series: RunSeries, metric: str | None = None, width: int = WIDTH) -> alt.LayerChart:
    """A metric of the global model after every round; in percent if it is an accuracy.

    Args:
        series: the run.
        metric: its key; None: the one that the task shows first.
        width: of the plot between its axes, in px.

    Raises:
        ValueError: the run has no finished round.
    """
    return styled(metric_panel(series, metric, width))


def metric_panel(series: RunSeries, metric: str | None, width: int) -> alt.LayerChart:
    """`metric_figure` before it is styled: a part of a larger one."""
    metric, last = metric or series.facts.metric, series.last
    rows = metric_rows(series, metric)
    measured = [row for row in rows if row["value"] is not None]
    frame = Frame(rounds_axis(last.round), metric_scale(metric, [row["value"] for row in measured]), width)
    line = chart_of(rows).mark_line(color=SPENDING).encode(frame.x, frame.y("value"))
    end = chart_of([row | {"text": metric_text(metric, row["value"])} for row in measured[-1:]])
    end = end.encode(frame.x, frame.y("value"))
    label = end.mark_text(dx=10, fontWeight="bold").encode(text="text:N")
    value = metric_text(metric, last.metrics.get(metric))
    title = titled(
        f"After {count_text(last.round, 'round')}: {metric_name(metric)} {value}",
        [[f"task {series.facts.task}", "global model on the server's public records", "after each round"]],
        width + ROOM,
    )
    return layered([line, end.mark_point(color=SPENDING), label], title, width)
