"""The figures of a run for notebooks: `run.figures.epsilon()` in a cell shows it, without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import altair as alt

from fedprivacy.figures.cost import cost_figure
from fedprivacy.figures.run import epsilon_figure, metric_figure, run_figure, tradeoff_figure
from fedprivacy.figures.style import to_svg
from fedprivacy.values.series import CostMap, RunSeries


class Figure:
    """A figure that draws itself: Altair's own charts load Vega from the network when a notebook shows them.

    `chart` is the Altair chart, to be changed or combined with others.
    """

    def __init__(self, chart: alt.LayerChart | alt.HConcatChart) -> None:
        self.chart = chart

    def save(self, path: str | Path) -> None:
        """Write the figure into a file: .svg, .png, .pdf, .html or .json (Vega-Lite)."""
        self.chart.save(str(path))

    def _repr_svg_(self) -> str:
        return to_svg(self.chart)


class RunFigures:
    """The figures of one run. Each is drawn from the data at the time of the call.

    Every method raises a ValueError while the run has no finished round.

    Args:
        series: function that reads the run, with the curves of the named clients.
        costs: function that reads the cost of rounds for clients.
    """

    def __init__(self, series: Callable[[tuple[str, ...]], RunSeries], costs: Callable[[], CostMap]) -> None:
        self._series, self._costs = series, costs

    def overview(self) -> Figure:
        """Draw the metric and the privacy loss side by side."""
        return Figure(run_figure(self._series(())))

    def accuracy(self) -> Figure:
        """Draw the accuracy after every round."""
        return self.metric("accuracy")

    def metric(self, name: str | None = None) -> Figure:
        """Draw a metric after every round; by default the one that the task shows first."""
        return Figure(metric_figure(self._series(()), name))

    def epsilon(self, *client_ids: str) -> Figure:
        """Draw every client's epsilon after every round, those of the named clients on top."""
        return Figure(epsilon_figure(self._series(client_ids)))

    def tradeoff(self) -> Figure:
        """Draw the metric against the largest epsilon of a client."""
        return Figure(tradeoff_figure(self._series(())))

    def cost(self) -> Figure:
        """Draw the growth of every client's epsilon, round by round."""
        return Figure(cost_figure(self._costs(), self._series(()).facts))
