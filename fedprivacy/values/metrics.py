"""Scores of a model on clients' records, and the metrics of a run by name.

A score of private records is an estimate from noisy sums; one of held-out records, which are declared public, is exact.
A metric's name says on whose records it was measured: `accuracy` is of the global model on the server's public records,
`each_accuracy` of each client's model on its held-out records, `clients_accuracy` of the global model on the clients'
own records, with noise. Callbacks add names of their own. `shown_metric` chooses the one that is shown first.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

OF_CLIENTS = "clients_"
"""Prefix of a metric that was measured on the clients' own records."""

RECORDS = "records"
"""Name, among the scores' names, of the estimated number of records."""

MOST_SCORES = 255
"""Maximum number of scores of a task: all share one record's sensitivity, so that many would drown in noise."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a model on private records, as exact as the noise allows.

    Attributes:
        records: noisy estimate of the number of records.
        means: noisy estimates of the records' mean scores, by name.
        deviations: standard deviation that the noise gives each mean; that of the sample comes on top.
    """

    records: float
    means: Mapping[str, float]
    deviations: Mapping[str, float]

    @property
    def metrics(self) -> dict[str, float]:
        """Return the same figures as metrics of a round."""
        figures = {RECORDS: self.records, **self.means}
        return {f"{OF_CLIENTS}{name}": value for name, value in figures.items()}


OF_EACH = "each_"
"""Prefix of a metric that is the mean over clients' held-out records, each client's under its own model."""

_LEAST, _MOST = "_least", "_most"
"""Suffixes of such a metric's smallest and largest value of a client."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Scores of one client's model on its held-out records.

    Attributes:
        records: number of held-out records.
        means: their mean scores, by name.
        whole: metrics of all these records together, by name, for example an AUC; one that these records do not
            define, because all are of one class, is missing.
    """

    records: int
    means: Mapping[str, float]
    whole: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Return both by name."""
        return {**self.means, **self.whole}


class ScoreSpread(NamedTuple):
    """One score or metric over all clients: its mean, and minimum, quartiles and maximum of the clients' values.

    The mean of a score is over all records, that of a metric of records as a whole over the clients that have it.
    """

    mean: float
    least: float
    lower: float
    median: float
    upper: float
    most: float


def spread_of(held_out: Mapping[str, HeldOut]) -> dict[str, ScoreSpread]:
    """Return the spread of each score over clients with held-out records, by name; empty if none has any."""
    some = [each for each in held_out.values() if each.records]
    if not some:
        return {}
    scores = {
        name: _spread([each.means[name] for each in some], [each.records for each in some]) for name in some[0].means
    }
    known = {name: [each.whole[name] for each in some if name in each.whole] for each in some for name in each.whole}
    return scores | {name: _spread(values, [1] * len(values)) for name, values in known.items()}


def metrics_of_each(held_out: Mapping[str, HeldOut]) -> dict[str, float]:
    """Return the mean scores as metrics of a round, each with the smallest and largest mean of a client."""
    metrics: dict[str, float] = {}
    for name, spread in spread_of(held_out).items():
        each = f"{OF_EACH}{name}"
        metrics |= {each: spread.mean, f"{each}{_LEAST}": spread.least, f"{each}{_MOST}": spread.most}
    return metrics


def _spread(values: list[float], weights: list[int]) -> ScoreSpread:
    mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    lower, median, upper = quartiles
    return ScoreSpread(mean, min(values), lower, median, upper, max(values))


def shown_metric(declared: str, measured: Collection[str]) -> str:
    """Choose the metric that is shown first: the task's own, or the nearest that the run measured instead.

    After the task's metric come the same on held-out and on clients' own records, then any other mean.

    >>> shown_metric("accuracy", ["each_loss", "each_accuracy", "each_accuracy_least"])
    'each_accuracy'
    >>> shown_metric("accuracy", [])
    'accuracy'
    """
    bare = bare_name(declared)
    preferred = (declared, f"{OF_EACH}{bare}", f"{OF_CLIENTS}{bare}", bare, *main_metrics(measured))
    return next((name for name in preferred if name in measured), declared)


def bare_name(metric: str) -> str:
    """Return a metric's name without the records that it is of: `accuracy` for `each_accuracy`."""
    return metric.removeprefix(OF_EACH).removeprefix(OF_CLIENTS)


def main_metrics(measured: Iterable[str]) -> list[str]:
    """Leave out the number of records and the extremes of clients, which stand beside a metric."""
    return [
        name
        for name in measured
        if name != f"{OF_CLIENTS}{RECORDS}" and not (name.startswith(OF_EACH) and name.endswith((_LEAST, _MOST)))
    ]


def measured_names(rounds: Iterable[Mapping[str, float]]) -> list[str]:
    """List the names of all metrics of some rounds, each once, in the order in which they were measured."""
    return list(dict.fromkeys(name for metrics in rounds for name in metrics))


def measured_on(metric: str) -> str:
    """Name the model and the records that a metric is of, for people.

    >>> measured_on("each_auc")
    "each client's model on its held-out records"
    """
    if metric.startswith(OF_EACH):
        return "each client's model on its held-out records"
    if metric.startswith(OF_CLIENTS):
        return "global model on the clients' own records, with noise"
    return "global model on the server's public records"
