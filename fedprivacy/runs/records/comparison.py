"""Runs beside one another: what each reached, what it spent, and what its privacy cost in the metric."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

from fedprivacy._support.altair import alt
from fedprivacy.figures import compared_metric_figure, save_png, to_svg
from fedprivacy.figures.named import Figure
from fedprivacy.figures.observations import FEWEST_RUNS, MOST_RUNS, names_of
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.records.html_page import for_every_screen, page
from fedprivacy.runs.records.run import Run, open_run
from fedprivacy.runs.settings.configuration import NAMING, differing_settings
from fedprivacy.values.metrics import main_metrics, measured_names, measured_on
from fedprivacy.values.numbers import finite_or_none, or_infinite, plain
from fedprivacy.values.runs import Rows
from fedprivacy.values.wording import (
    NO_PRIVACY,
    budget_text,
    change_text,
    count_text,
    epsilon_text,
    is_share,
    less_is_better,
    metric_name,
    metric_text,
)

COMPARED, COMPARED_FIGURE = "compare.html", "compare.png"

_FIGURE_WIDTH = 560
"""Width of the plot in px; with its labels it is as wide as the page."""

_OF_PRIVACY = frozenset(
    {"privacy", "epsilon", "delta", "noise-multiplier", "clipping", "clipping-norm", "filter", "seed", "out"}
    | {"ledger", "resume", "signing-key", "trackers", "device", "node-timeout", "round-timeout", *NAMING}
)
"""Settings that may differ between a run and its baseline: what privacy is made of, and what changes no result."""


class Comparison:
    """Two to eight runs side by side, by one metric.

    A baseline among them, a run without privacy, tells what privacy cost the others.

    Attributes:
        runs: in the order in which they were given.
        metrics: names of everything that any of them measured.
        metric: name of the one that is compared.

    Raises:
        RunFolderError: no run has measured the metric that is asked for.
    """

    def __init__(self, runs: Sequence[Run], metric: str | None = None) -> None:
        self.runs = tuple(runs)
        self.metrics = measured_names(run.history.newest_metrics for run in self.runs)
        if metric and metric not in self.metrics:
            raise RunFolderError(
                f"metric is '{metric}', which none of the runs has measured; choose from {', '.join(self.metrics)}."
            )
        self.metric = metric or self._common()

    def _common(self) -> str:
        """Choose the first run's metric, or the first one that all runs have."""
        first, *others = (run.history for run in self.runs)
        preferred = [first.metric, *main_metrics(first.metrics)]
        shared = (name for name in preferred if all(name in each.newest_metrics for each in (first, *others)))
        return next(shared, first.metric)

    @cached_property
    def rows(self) -> Rows:
        """A row for each run.

        `run`, its name here; `folder`; `task`; `final` and `best`, the metric after the last round and in `best_round`,
        or None; `rounds`, finished; `epsilon`, the largest of a client, and its `budget`, None without a bound;
        `metrics`, every metric's newest value; `privacy`, False for a baseline; `delta`; `noise_multiplier`, None for a
        baseline, and `largest_noise_multiplier`, another where clients have their own; `seed`; `cost`, by how much
        `final` is worse than the baseline's (the mean of several), None without a baseline of the same task.
        """
        names = names_of([run.history.facts for run in self.runs])
        return Rows(self._row(name, run) for name, run in zip(names, self.runs, strict=True))

    @property
    def percent(self) -> bool:
        """Tell whether the metric is a share of the records."""
        return all(is_share(self.metric, row["final"]) for row in self.rows if row["final"] is not None)

    @cached_property
    def differing(self) -> dict[str, list[str]]:
        """The settings in which the runs differ, each with every run's value; where results go is none of them."""
        settings = [run.settings for run in self.runs]
        return {key: [_setting_text(key, one) for one in settings] for key in differing_settings(settings)}

    @property
    def cautions(self) -> list[str]:
        """Settings that a run does not share with its baseline, so that the cost is not that of privacy alone."""
        found = []
        for row, run in zip(self.rows, self.runs, strict=True):
            baseline = next(iter(self._baselines(run)), None)
            if row["cost"] is None or baseline is None:
                continue
            own, other = run.settings, baseline.settings
            unlike = sorted(key for key in own if key not in _OF_PRIVACY and own[key] != other.get(key, own[key]))
            if unlike:
                found.append(f"{row['run']} and its baseline differ in {', '.join(unlike)}, too.")
        return found

    def figure(self) -> Figure:
        """Draw the metric by round, a line for each run. Raises ValueError: none of the runs has measured anything."""
        return Figure(self._draw())

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write `compare.html`, one file to mail, print and keep, and `compare.png` into a folder; the page's path.

        Runs that measured nothing have no figure.
        """
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        if self.metrics:
            save_png(self.figure().chart, where / COMPARED_FIGURE)
        (where / COMPARED).write_text(self._page(), encoding="utf-8")
        return where / COMPARED

    def summary(self) -> dict[str, Any]:
        """The comparison as `fedprivacy compare --json` prints it."""
        return {
            "metric": self.metric,
            "metrics": self.metrics,
            "runs": list(self.rows),
            "differing": self.differing,
            "cautions": self.cautions,
        }

    def in_words(self) -> str:
        """The result in a sentence."""
        finals = [row["final"] for row in self.rows if row["final"] is not None]
        reached = [metric_text(self.metric, value) for value in sorted({min(finals), max(finals)})] if finals else []
        measured = f"{metric_name(self.metric)} {' to '.join(dict.fromkeys(reached)) or 'not measured'}"
        costs = [row["cost"] for row in self.rows if row["cost"] is not None]
        if not costs:
            return f"{count_text(len(self.runs), 'run')}: {measured}"
        span = " to ".join(dict.fromkeys(self.cost_text(cost) for cost in sorted({min(costs), max(costs)})))
        return f"{count_text(len(self.runs), 'run')}: {measured}; privacy costs {span}"

    def epsilon_text(self, row: Mapping[str, Any]) -> str:
        """The text of what a row's run spent."""
        if not row["privacy"]:
            return NO_PRIVACY
        return epsilon_text(or_infinite(row["epsilon"]), or_infinite(row["budget"]))

    def cost_text(self, cost: float | None) -> str:
        """A cost for people; a negative one is a gain."""
        if cost is None:
            return "-"
        return change_text(cost, percent=self.percent).removeprefix("+")

    def _row(self, name: str, run: Run) -> dict[str, Any]:
        history, facts = run.history, run.history.facts
        best = _best_of(history, self.metric)
        worst = history.worst
        return {
            "run": name,
            "folder": str(run.folder),
            "task": facts.task,
            "final": final_of(history, self.metric),
            "best": best[0] if best else None,
            "best_round": best[1] if best else None,
            "metrics": plain(history.newest_metrics),
            "rounds": history.finished,
            "privacy": facts.private,
            "epsilon": finite_or_none(worst.epsilon),
            "budget": finite_or_none(worst.budget_epsilon),
            "delta": facts.delta,
            "noise_multiplier": facts.noise_multiplier if facts.private else None,
            "largest_noise_multiplier": facts.largest_noise_multiplier if facts.private else None,
            "seed": run.settings.get("seed"),
            "cost": self._cost(run),
        }

    def _baselines(self, run: Run) -> list[Run]:
        """Runs without privacy on the task of a private run."""
        if not run.history.facts.private:
            return []
        return [
            other
            for other in self.runs
            if not other.history.facts.private and other.settings["task"] == run.settings["task"]
        ]

    def _cost(self, run: Run) -> float | None:
        final = final_of(run.history, self.metric)
        reached = [final_of(other.history, self.metric) for other in self._baselines(run)]
        known = [value for value in reached if value is not None]
        if final is None or not known:
            return None
        worse = final - fmean(known) if less_is_better(self.metric) else fmean(known) - final
        return worse + 0.0  # never -0

    def _page(self) -> str:
        drawing = for_every_screen(self._draw, _FIGURE_WIDTH) if self.metrics else ""
        return page("compare.html.jinja", comparison=self, drawing=drawing, measured_on=measured_on(self.metric))

    def _draw(self, width: int = _FIGURE_WIDTH, *, below: bool = False) -> alt.LayerChart:
        series = [run.history.series() for run in self.runs]
        return compared_metric_figure(series, self.metric, width, below=below)

    def __repr__(self) -> str:
        return f"<Comparison of {self.in_words()}>"

    def _repr_html_(self) -> str:
        words = html.escape(self.in_words())
        return f"<p><b>{words}</b></p>{to_svg(self._draw()) if self.metrics else ''}"


def compare(*runs: Run | str | PathLike[str], metric: str | None = None) -> Comparison:
    """Put runs side by side: the metric of each, the epsilon that it spent, and what that cost beside a baseline.

    >>> import fedprivacy as fp
    >>> baseline = fp.simulate("cancer", clients=3, rounds=2, privacy=False, progress=False)
    >>> private = fp.simulate("cancer", clients=3, rounds=2, epsilon=1.0, progress=False)
    >>> compared = fp.compare(baseline, private)
    >>> [row["privacy"] for row in compared.rows], compared.rows[0]["cost"] is None
    ([False, True], True)
    >>> compared.save("comparison").name
    'compare.html'

    Args:
        runs: 2 to 8, each as it was returned or opened, or the folder that it wrote to.
        metric: name of the metric to compare, for example "each_auc"; by default the one that the first run shows
            first, or the first that all of them measured.

    Raises:
        RunFolderError: a folder holds no run, a run has no finished round, they are too few or too many, or none has
            measured the metric.
    """
    if not FEWEST_RUNS <= len(runs) <= MOST_RUNS:
        count = count_text(len(runs), "run")
        raise RunFolderError(f"{count} cannot be compared; name {FEWEST_RUNS} to {MOST_RUNS} folders.")
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    unfinished = [str(run.folder) for run in opened if not run.history.rounds]
    if unfinished:
        raise RunFolderError(f"'{unfinished[0]}' has no finished round; leave it out, or go on with it (--resume).")
    return Comparison(opened, metric)


def final_of(history: RunHistory, metric: str) -> float | None:
    """The newest value of a metric; None: it was not measured, or is not a number."""
    return finite_or_none(history.newest_metrics.get(metric))


def _best_of(history: RunHistory, metric: str) -> tuple[float, int] | None:
    """The best value of a metric and the first round that reached it; None: it was never a number."""
    values = [
        (one.metrics[metric], one.round) for one in history.rounds if math.isfinite(one.metrics.get(metric, math.nan))
    ]
    sign = 1 if less_is_better(metric) else -1
    return min(values, key=lambda found: (sign * found[0], found[1]), default=None)


def _setting_text(key: str, settings: Mapping[str, Any]) -> str:
    """A setting as a run has it, for people."""
    value = settings.get(key)
    if settings.get("privacy") is False and key in ("epsilon", "noise-multiplier"):
        return NO_PRIVACY
    if isinstance(value, float):
        return budget_text(value)
    return "left open" if value in (None, "") else str(value)
