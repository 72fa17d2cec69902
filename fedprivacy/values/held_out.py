"""What each client's model scores on held-out records that are declared public: exact figures, and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

OF_EACH = "each_"
"""Begins the name of a metric that is the mean over clients' held-out records, each client's under its own model."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How one client's model scores on its held-out records.

    Attributes:
        records: how many there are.
        means: their mean score, by name.
    """

    records: int
    means: Mapping[str, float]


class ScoreSpread(NamedTuple):
    """One score over all clients: the mean of all records, and least, quartiles and most of the clients' means."""

    mean: float
    least: float
    lower: float
    median: float
    upper: float
    most: float


def spread_of(held_out: Mapping[str, HeldOut]) -> dict[str, ScoreSpread]:
    """How each score varies over clients that have held-out records, by its name; empty if none has."""
    some = [each for each in held_out.values() if each.records]
    return {name: _spread(name, some) for name in some[0].means} if some else {}


def metrics_of_each(held_out: Mapping[str, HeldOut]) -> dict[str, float]:
    """The mean scores as metrics of a round, each with the least and the most of a client."""
    metrics: dict[str, float] = {}
    for name, spread in spread_of(held_out).items():
        each = f"{OF_EACH}{name}"
        metrics |= {each: spread.mean, f"{each}_least": spread.least, f"{each}_most": spread.most}
    return metrics


def _spread(name: str, clients: list[HeldOut]) -> ScoreSpread:
    means = [each.means[name] for each in clients]
    records = sum(each.records for each in clients)
    mean = sum(each.records * each.means[name] for each in clients) / records
    quartiles = statistics.quantiles(means, n=4, method="inclusive") if len(means) > 1 else means * 3
    lower, median, upper = quartiles
    return ScoreSpread(mean, min(means), lower, median, upper, max(means))
