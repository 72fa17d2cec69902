"""The figures of a run for notebooks: `run.figures.epsilon()` in a cell shows it, without a network."""

from __future__ import annotations

from pathlib import Path

from fedprivacy._support.altair import alt
from fedprivacy.figures.named import NAMED_FIGURES, FigureOptions, RunData
from fedprivacy.figures.run import run_figure
from fedprivacy.figures.style import WIDTH, to_svg


class Figure:
    """A figure that draws itself: Altair's own charts load Vega from the network when a notebook shows them.

    `chart` is the Altair chart, to be changed or combined with others.
    """

    def __init__(self, chart: alt.LayerChart | alt.HConcatChart) -> None:
        self.chart = chart

    def save(self, path: str | Path) -> None:
        """Write the figure into a file: .svg, .png, .pdf, .html or .json (Vega-Lite)."""
        self.chart.save(str(path))

    def __repr__(self) -> str:
        return f"<Figure: {' '.join(self.chart.title.text)}>"

    def _repr_svg_(self) -> str:
        return to_svg(self.chart)


class RunFigures:
    """The figures of one run. Each is drawn from the data at the time of the call.

    Every method raises a ValueError while the run has no finished round.
    """

    def __init__(self, run: RunData) -> None:
        self._run = run

    def named(self, name: str, *, clients: tuple[str, ...] = (), metric: str | None = None) -> Figure:
        """Draw a figure of the page by its name.

        Args:
            name: one of `fedprivacy.figures.NAMED_FIGURES`.
            clients: those to show, where the figure shows clients.
            metric: the one to show; by default the one that the task shows first.

        Raises:
            ValueError: there is no such figure, or the run has nothing to draw.
        """
        if name not in NAMED_FIGURES:
            raise ValueError(f"there is no figure '{name}'; choose from {', '.join(NAMED_FIGURES)}.")
        return Figure(NAMED_FIGURES[name].draw(self._run, FigureOptions(clients, metric), WIDTH))

    def overview(self) -> Figure:
        """Draw the metric and the privacy loss side by side."""
        return Figure(run_figure(self._run.series(())))

    def accuracy(self) -> Figure:
        """Draw the accuracy after every round."""
        return self.metric("accuracy")

    def metric(self, name: str | None = None) -> Figure:
        """Draw a metric after every round; by default the one that the task shows first."""
        return self.named("metric", metric=name)

    def epsilon(self, *client_ids: str) -> Figure:
        """Draw every client's epsilon after every round, those of the named clients on top."""
        return self.named("epsilon", clients=client_ids)

    def tradeoff(self, metric: str | None = None) -> Figure:
        """Draw a metric against the largest epsilon of a client; by default the one that is shown first."""
        return self.named("tradeoff", metric=metric)

    def cost(self, *client_ids: str) -> Figure:
        """Draw the growth of every client's epsilon, round by round, or that of the named clients."""
        return self.named("cost", clients=client_ids)
