"""Figures by their names: of one run and of many, for pages and files of numbers, and of one run for notebooks.

`run.figures.epsilon()` in a cell shows the figure, without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedprivacy._support.altair import alt
from fedprivacy.figures import observations
from fedprivacy.figures.experiments import experiment_figure, experiment_rows, parallel_figure, parallel_rows
from fedprivacy.figures.run import cost_figure, epsilon_figure, metric_figure, run_figure, tradeoff_figure
from fedprivacy.figures.style import WIDTH, Rows, to_svg
from fedprivacy.values.series import CostMap, RunFacts, RunSeries


@dataclass(frozen=True, slots=True)
class RunData:
    """Data of one run, read at the time of the call.

    Attributes:
        series: function that reads the run, with the curves of the named clients.
        costs: function that reads the cost of each round to the named clients; without names, to those that spent most.
    """

    series: Callable[[Sequence[str]], RunSeries]
    costs: Callable[[Sequence[str]], CostMap]


@dataclass(frozen=True, slots=True)
class FigureOptions:
    """Options of a figure: names of the clients to show, and a metric other than the task's first.

    `below`: labels of lines stand below the plot, for narrow screens, instead of beside it.
    """

    clients: Sequence[str] = ()
    metric: str | None = None
    below: bool = False


Shown = TypeVar("Shown")
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class NamedFigure(Generic[Shown, Options]):
    """A figure of one run, or of many.

    Attributes:
        title: of its card on the page.
        about: one sentence that says how to read it.
        draw: makes the chart of a run, or of rows of `fedprivacy.list_runs`, with a plot of a width in px.
        rows: makes the table of its numbers.
        private: whether it shows epsilons, which a baseline does not have.
        by_round: whether it needs several rounds, which a run of questions does not have.
    """

    title: str
    about: str
    draw: Callable[[Shown, Options, int], alt.LayerChart]
    rows: Callable[[Shown, Options], Rows]
    private: bool = True
    by_round: bool = True

    def shows(self, facts: RunFacts) -> bool:
        """Tell whether a run has what the figure shows."""
        return (facts.private or not self.private) and not (facts.asks and self.by_round)


NAMED_FIGURES: dict[str, NamedFigure[RunData, FigureOptions]] = {
    "metric": NamedFigure(
        "Metric by round",
        "The line under the title says on whose records it was measured.",
        lambda run, options, width: metric_figure(run.series(options.clients), options.metric, width),
        lambda run, options: observations.metric_rows(run.series(options.clients), options.metric),
        private=False,
        by_round=False,
    ),
    "epsilon": NamedFigure(
        "Privacy loss by round",
        "Tick clients in the table below to draw them here.",
        lambda run, options, width: epsilon_figure(run.series(options.clients), width, below=options.below),
        lambda run, options: observations.epsilon_rows(run.series(options.clients)),
        by_round=False,
    ),
    "tradeoff": NamedFigure(
        "Metric against privacy loss",
        "What ε has bought so far: a point for each round.",
        lambda run, options, width: tradeoff_figure(run.series(options.clients), options.metric, width),
        lambda run, options: observations.tradeoff_rows(run.series(options.clients), options.metric),
    ),
    "cost": NamedFigure(
        "What each round cost each client",
        "How much a client's ε grew; grey where it was not charged.",
        lambda run, options, width: cost_figure(run.costs(options.clients), run.series(()).facts, width),
        lambda run, options: observations.cost_rows(run.costs(options.clients)),
    ),
}
"""Figures by name. A new one needs an entry here and nothing else: page, notebook and CSV find it."""


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """Options of a figure of many runs.

    Attributes:
        x: the setting or metric on the horizontal axis, or on the first.
        y: the metric.
        colour: the setting or metric that colours the marks; empty: the figure's own choice.
        settings: the settings in which the runs differ.
    """

    x: str
    y: str
    colour: str = ""
    settings: Sequence[str] = ()


RUNS_FIGURES: dict[str, NamedFigure[Sequence[Mapping[str, Any]], RunsOptions]] = {
    "points": NamedFigure(
        "One point for each run",
        "The newest value of the metric against the setting.",
        lambda runs, options, width: experiment_figure(runs, options.x, options.y, options.colour, width),
        lambda runs, options: experiment_rows(runs, options.x, options.y, options.colour),
    ),
    "parallel": NamedFigure(
        "One line for each run",
        "From the setting, through the others in which the runs differ, to the newest value of the metric.",
        lambda runs, options, width: parallel_figure(
            runs, (options.x, *options.settings), options.y, options.colour, width
        ),
        lambda runs, options: parallel_rows(runs, (options.x, *options.settings), options.y, options.colour),
    ),
}
"""Figures of many runs by name. A new one needs an entry here and nothing else: page and CSV find it."""


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
