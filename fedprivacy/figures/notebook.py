"""The figures of a run for notebooks: `run.figures.epsilon()` in a cell shows it."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt

from fedprivacy.figures.cost import cost_figure
from fedprivacy.figures.epsilon import epsilon_figure
from fedprivacy.figures.metric import metric_figure
from fedprivacy.figures.overview import run_figure
from fedprivacy.figures.style import WIDTH
from fedprivacy.figures.tradeoff import tradeoff_figure
from fedprivacy.values.series import CostMap, RunSeries


class RunFigures:
    """The figures of one run. Each is drawn from what is known when it is asked for.

    Every method raises a ValueError while the run has no finished round.

    Args:
        series: reads the run, with the curves of the clients that are named.
        costs: reads what rounds cost clients; None: nobody knows.
        width: of each plot between its axes, in px.
    """

    def __init__(
        self,
        series: Callable[[tuple[str, ...]], RunSeries],
        costs: Callable[[], CostMap] | None = None,
        width: int = WIDTH,
    ) -> None:
        self._series = series
        self._costs = costs
        self._width = width

    def overview(self) -> alt.HConcatChart:
        """The metric and the privacy loss side by side."""
        return run_figure(self._series(()))

    def metric(self, name: str | None = None) -> alt.LayerChart:
        """A metric after every round; by default the one that the task shows first."""
        return metric_figure(self._series(()), name, self._width)

    def epsilon(self, *client_ids: str) -> alt.LayerChart:
        """Every client's epsilon after every round, those of the named clients on top."""
        return epsilon_figure(self._series(client_ids), self._width)

    def tradeoff(self) -> alt.LayerChart:
        """The metric against the largest epsilon of a client."""
        return tradeoff_figure(self._series(()), self._width)

    def cost(self) -> alt.LayerChart:
        """How much every client's epsilon grew, round by round.

        Raises:
            ValueError: nobody knows.
        """
        if self._costs is None:
            raise ValueError("what each round cost each client is not known of this run; read it from its folder.")
        return cost_figure(self._costs(), self._series(()).facts, self._width)
