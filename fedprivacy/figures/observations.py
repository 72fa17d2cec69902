"""Numbers behind each figure, one observation a row: for files, and for figures of the user's own.

Not all runs can be compared: a `Contest` holds those that can.

Cells are texts, whole numbers, numbers, or None for a value that was not measured, or has no bound or limit; no epsilon
is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from fedprivacy.figures.style import Rows
from fedprivacy.values.numbers import finite_or_none
from fedprivacy.values.runs import AuditResult
from fedprivacy.values.series import CostMap, Curve, RunFacts, RunSeries
from fedprivacy.values.wording import NO_PRIVACY, metric_name

FEWEST_RUNS, MOST_RUNS = 2, 8


def metric_rows(series: RunSeries, metric: str | None = None) -> Rows:
    """Return rows `round`, `metric`, `value`: a metric after every round; by default the task's first."""
    metric = metric or series.facts.metric
    return [
        {"round": point.round, "metric": metric, "value": finite_or_none(point.metrics.get(metric))}
        for point in series.points
    ]


def epsilon_rows(series: RunSeries) -> Rows:
    """Return rows `line`, `clients`, `round`, `epsilon`, `state`, `budget`: every line of the figure after every round.

    A line stands for a client, several identical clients, or a quantile of all: its name is also its key.
    """
    spreads = _quantile_rows(series) if series.curves is None else []
    return spreads + [row for curve in (*drawn_curves(series), *added_curves(series)) for row in _curve_rows(curve)]


def drawn_curves(series: RunSeries) -> tuple[Curve, ...]:
    """Return the curves that are lines whether or not a client was chosen: all, or those at the edges of a fan."""
    return series.outer if series.curves is None else series.curves


def added_curves(series: RunSeries) -> list[Curve]:
    """Return curves of chosen clients that have no line of their own among `drawn_curves`."""
    alone = {curve.client_ids for curve in drawn_curves(series)}
    return [curve for curve in series.chosen if curve.client_ids not in alone]


def points(curve: Curve) -> Rows:
    """Return rows `round`, `epsilon`, `state`: 'spending', or the budget's state once no step was left."""
    turn = math.inf if curve.exhausted_in is None else curve.exhausted_in
    return [
        {"round": number, "epsilon": epsilon, "state": "spending" if number < turn else curve.state}
        for number, epsilon in zip(curve.rounds, curve.epsilons, strict=True)
    ]


def _quantile_rows(series: RunSeries) -> Rows:
    return [
        {
            "line": f"all clients: {name.replace('_', ' ')}",
            "clients": point.clients,
            "round": point.round,
            "epsilon": finite_or_none(epsilon),
            "state": None,
            "budget": None,
        }
        for point in series.points
        for name, epsilon in asdict(point.epsilons).items()
    ]


def _curve_rows(curve: Curve) -> Rows:
    others = len(curve.client_ids) - 1
    line = f"{curve.client_ids[0]} and {others} more" if others else curve.client_ids[0]
    return [
        {"line": line, "clients": others + 1}
        | point
        | {"epsilon": finite_or_none(point["epsilon"]), "budget": finite_or_none(curve.budget)}
        for point in points(curve)
    ]


def tradeoff_rows(series: RunSeries, metric: str | None = None) -> Rows:
    """Return rows `round`, `epsilon`, `metric`, `value`: a client's largest epsilon and a metric after every round."""
    return [
        {"round": point.round, "epsilon": finite_or_none(point.epsilons.most)} | row
        for point, row in zip(series.points, metric_rows(series, metric), strict=True)
    ]


def cost_rows(cost: CostMap) -> Rows:
    """Return rows `client`, `first_round`, `last_round`, `growth` of epsilon in these rounds, where it is known."""
    return [
        {"client": client_id, "first_round": first, "last_round": last, "growth": float(growth)}
        for client_id, growths in zip(cost.client_ids, cost.growth, strict=True)
        for first, last, growth in zip(cost.first, cost.last, growths, strict=True)
        if math.isfinite(growth)
    ]


def audit_rows(audits: Iterable[AuditResult]) -> Rows:
    """Return the fields of each audit, `at` in UTC, and its `verdict`."""
    return [
        asdict(audit)
        | {
            "at": datetime.fromtimestamp(audit.at, UTC).isoformat(timespec="seconds"),
            "upper": finite_or_none(audit.upper),
            "verdict": audit.verdict.value,
        }
        for audit in audits
    ]


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run among others, by a unique name; its place decides its look in every figure."""

    place: int
    name: str
    series: RunSeries


@dataclass(frozen=True, slots=True)
class Contest:
    """Runs side by side: the compared metric's key, the runs that can be drawn, and why others cannot."""

    metric: str
    runs: tuple[ComparedRun, ...]
    left_out: tuple[str, ...]


def names_of(runs: Sequence[RunFacts]) -> list[str]:
    """Return the names of runs among others; with their places if two have the same name."""
    names = [facts.name for facts in runs]
    return names if len(set(names)) == len(names) else [f"{name} #{n}" for n, name in enumerate(names, start=1)]


def contest(
    series: Sequence[RunSeries], metric: str | None = None, *, measured: bool = False, private: bool = False
) -> Contest:
    """Select the runs with a finished round that (`measured`) know a metric and (`private`) have an epsilon.

    Args:
        series: the runs.
        metric: the metric; None: the first run's.
        measured: whether a run must have measured it.
        private: whether a run must have privacy.

    Raises:
        ValueError: there are fewer than 2 runs or more than 8, or none can be drawn.
    """
    if not FEWEST_RUNS <= len(series) <= MOST_RUNS:
        raise ValueError(f"{len(series)} runs cannot be compared; choose {FEWEST_RUNS} to {MOST_RUNS}.")
    metric = metric or series[0].facts.metric
    drawn, left_out = [], []
    for place, (name, one) in enumerate(zip(names_of([one.facts for one in series]), series, strict=True)):
        if not one.points:
            left_out.append(f"{name} (no finished round)")
        elif private and not one.facts.private:
            left_out.append(f"{name} ({NO_PRIVACY})")
        elif measured and not any(metric in point.metrics for point in one.points):
            left_out.append(f"{name} (no {metric_name(metric)})")
        else:
            drawn.append(ComparedRun(place, name, one))
    if not drawn:
        raise ValueError(f"none of the runs can be drawn yet: {', '.join(left_out)}; wait for their rounds.")
    return Contest(metric, tuple(drawn), tuple(left_out))


def compared_metric_rows(runs: Sequence[RunSeries], metric: str | None = None) -> Rows:
    """Return rows of `run` and the columns of `metric_rows`, for runs that measured it; None: the first's metric."""
    found = contest(runs, metric, measured=True)
    return [{"run": run.name} | row for run in found.runs for row in metric_rows(run.series, found.metric)]


def compared_epsilon_rows(runs: Sequence[RunSeries]) -> Rows:
    """Return rows `run`, `round`, `epsilon`: the largest of a client."""
    return [
        {"run": run.name, "round": point.round, "epsilon": finite_or_none(point.epsilons.most)}
        for run in contest(runs, private=True).runs
        for point in run.series.points
    ]


def compared_tradeoff_rows(runs: Sequence[RunSeries], metric: str | None = None) -> Rows:
    """Return rows of `run` and the columns of `tradeoff_rows`, for runs that measured it; None: the first's metric."""
    found = contest(runs, metric, measured=True, private=True)
    return [{"run": run.name} | row for run in found.runs for row in tradeoff_rows(run.series, found.metric)]
