"""Scores of each client's model on held-out records that are declared public: exact figures, and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

OF_EACH = "each_"
"""Prefix of a metric that is the mean over clients' held-out records, each client's under its own model."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Scores of one client's model on its held-out records.

    Attributes:
        records: number of held-out records.
        means: their mean scores, by name.
    """

    records: int
    means: Mapping[str, float]


class ScoreSpread(NamedTuple):
    """One score over all clients: mean over all records, and minimum, quartiles and maximum of the clients' means."""

    mean: float
    least: float
    lower: float
    median: float
    upper: float
    most: float


def spread_of(held_out: Mapping[str, HeldOut]) -> dict[str, ScoreSpread]:
    """Return the spread of each score over clients with held-out records, by name; empty if none has any."""
    some = [each for each in held_out.values() if each.records]
    return {name: _spread(name, some) for name in some[0].means} if some else {}


def metrics_of_each(held_out: Mapping[str, HeldOut]) -> dict[str, float]:
    """Return the mean scores as metrics of a round, each with the smallest and largest mean of a client."""
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
