"""Local evaluation: estimates from noisy sums, and the standard deviation that the noise gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
