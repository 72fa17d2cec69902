"""What local evaluation tells: estimates from noisy sums, and how much the noise moves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OF_CLIENTS = "clients_"
"""Begins the name of a metric that was measured on the clients' own records."""


RECORDS = "records"
"""What the estimate of their number is called among the scores' names."""

MOST_SCORES = 255
"""That a task may have: they share one record's sensitivity, so that of many none tells anything."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a model scores on private records, as far as the noise lets anybody tell.

    Attributes:
        records: noisy estimate of how many there are.
        means: noisy estimate of their mean score, by name.
        deviations: standard deviation that the noise gives each mean; that of the sample comes on top.
    """

    records: float
    means: Mapping[str, float]
    deviations: Mapping[str, float]

    @property
    def metrics(self) -> dict[str, float]:
        """The same as metrics of a round."""
        figures = {RECORDS: self.records, **self.means}
        return {f"{OF_CLIENTS}{name}": value for name, value in figures.items()}
