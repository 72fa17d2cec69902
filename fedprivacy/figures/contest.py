"""Which runs can be compared, and how each is called and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedprivacy.values.series import RunSeries
from fedprivacy.values.wording import metric_name

FEWEST_RUNS, MOST_RUNS = 2, 8


@dataclass(frozen=True, slots=True)
class Run:
    """A run among others.

    Attributes:
        place: in the order in which the runs were asked for; it decides how the run is drawn, in every figure.
        name: unlike that of any other.
        series: its numbers.
    """

    place: int
    name: str
    series: RunSeries


@dataclass(frozen=True, slots=True)
class Contest:
    """Runs side by side.

    Attributes:
        metric: key of the first run's metric: the one that is compared.
        runs: those that can be drawn, at least one.
        left_out: the names of the others, with the reason.
    """

    metric: str
    runs: tuple[Run, ...]
    left_out: tuple[str, ...]


def contest(series: Sequence[RunSeries], *, measured: bool = False) -> Contest:
    """The runs that have a finished round and, if `measured`, that know the first run's metric.

    Raises:
        ValueError: there are fewer than 2 runs or more than 8, or none can be drawn.
    """
    if not FEWEST_RUNS <= len(series) <= MOST_RUNS:
        raise ValueError(f"{len(series)} runs cannot be compared; choose {FEWEST_RUNS} to {MOST_RUNS}.")
    metric = series[0].facts.metric
    runs = [Run(place, name, one) for place, (name, one) in enumerate(zip(_names(series), series, strict=True))]
    reasons = {run.name: _reason(run.series, metric if measured else None) for run in runs}
    drawn = tuple(run for run in runs if not reasons[run.name])
    left_out = tuple(f"{name} ({reason})" for name, reason in reasons.items() if reason)
    if not drawn:
        raise ValueError(f"none of the runs can be drawn yet: {', '.join(left_out)}; wait for their rounds.")
    return Contest(metric, drawn, left_out)


def _reason(series: RunSeries, metric: str | None) -> str:
    """Why a run cannot be drawn; empty: it can."""
    if not series.points:
        return "no finished round"
    if metric is not None and not any(metric in point.metrics for point in series.points):
        return f"no {metric_name(metric)}"
    return ""


def _names(series: Sequence[RunSeries]) -> list[str]:
    """Each run's own name; if two have the same, with the place of each."""
    names = [one.facts.name for one in series]
    if len(set(names)) == len(names):
        return names
    return [f"{name} #{place}" for place, name in enumerate(names, start=1)]
