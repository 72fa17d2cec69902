"""The privacy loss of a person with several rows, where each row is a record.

>>> from fedprivacy.accounting import pld
>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> history = {PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0): 1_000}
>>> [round(pld.epsilon(of_person(history, rows), delta=1e-5), 2) for rows in (1, *ROWS)]
[1.83, 3.98, 11.64, 27.9]
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedprivacy.accounting.calibration import UNLIMITED
from fedprivacy.accounting.histories import checked
from fedprivacy.values.events import (
    Event,
    History,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    RowSampledGaussian,
)
from fedprivacy.values.unit import MOST_ROWS

ROWS = (2, 5, 10)
"""Numbers of rows for which reports and certificates state what a person has lost."""


def of_person(history: History, rows: int = 1, clients: int = 1) -> dict[Event, int]:
    """Return the history of a person with `rows` rows at each of `clients` clients; that of a record, if both are 1.

    Formal guarantee: for shards that differ in the person, `history` at every client together is dominated by the
    returned one. A release with Gaussian noise becomes a `RowSampledGaussian`, or, if every record joins, one with
    noise `rows` times smaller; a randomised response about each row is so many of them. Clients draw samples and noise
    independently, so the losses of all add up.

    Args:
        history: number of executions of each event at one client.
        rows: the most rows that the person has at a client, 1 to `MOST_ROWS`.
        clients: the clients at which the person has rows, 1 to `MOST_ROWS`; each has the same history.

    Raises:
        ValueError: a number is out of range, or a mechanism has no known pair for several rows.
    """
    for name, value in (("rows_per_person", rows), ("clients_per_person", clients)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ROWS:
            raise ValueError(f"{name} is {value!r}; choose an integer from 1 to {MOST_ROWS}.")
    found: dict[Event, int] = {}
    for event, count in checked(history).items():
        released, times = _of_rows(event, rows)
        found[released] = found.get(released, 0) + count * times * clients
    if (steps := sum(found.values())) > UNLIMITED:
        raise ValueError(
            f"clients_per_person is {clients}, which makes {steps:,} steps in all; choose fewer steps or clients: at "
            f"most {UNLIMITED:,} steps can be composed."
        )
    return checked(found)


def _of_rows(event: Event, rows: int) -> tuple[Event, int]:
    """Return the event that dominates one for a person with so many rows, and the number of its executions."""
    if rows == 1:
        return event, 1
    match event:
        case PoissonSampledGaussian() | PoissonSampledLaplace() if event.sampling_rate == 1.0:
            return replace(event, noise_multiplier=math.nextafter(event.noise_multiplier / rows, 0.0)), 1
        case PoissonSampledGaussian():
            return RowSampledGaussian(event.sampling_rate, event.noise_multiplier, rows, event.relation), 1
        case RandomizedResponse():
            return event, rows
    raise ValueError(
        f"rows_per_person is {rows}, and no tight guarantee for several rows is known for {type(event).__name__}: use "
        "rows_per_person 1, and make each person one record."
    )
