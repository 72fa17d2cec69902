"""Checked histories that may be composed, the ways they grow, and those of persons with several rows.

Composition theorems hold for one neighbouring relation. A history that mixes two, or has invalid counts, is refused
here, once, before any accountant sees it.

The privacy loss of a person with several rows, where each row is a record:

>>> from fedprivacy.accounting import pld
>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> history = {PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0): 1_000}
>>> [round(pld.epsilon(person_history(history, rows), delta=1e-5), 2) for rows in (1, *ROWS)]
[1.83, 3.98, 11.64, 27.9]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import scipy

from fedprivacy.values.events import (
    Event,
    History,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    RowSampledGaussian,
    TruncatedPoissonSampledGaussian,
)
from fedprivacy.values.unit import MOST_ROWS

Executed = frozenset[tuple[Event, int]]
"""A history by whose value something is remembered."""

UNLIMITED = 2**31 - 1
"""Quota of a budget that is not enforced, and the largest number of steps that can be composed."""

ROWS = (2, 5, 10)
"""Numbers of rows for which reports and certificates state what a person has lost."""

_ROUND_UP = 1.0 + 1e-6  # far above the error of the binomial tail measured against 50-digit arithmetic


def executed_events(history: History) -> dict[Event, int]:
    """Return the events of `history` that were executed at least once, in a fixed order, so that sums are reproducible.

    Raises:
        ValueError: a count is negative or not an integer, or the events state different neighbouring relations.
    """
    for event, count in history.items():
        if count != int(count) or count < 0:
            raise ValueError(f"the history counts {event} {count} times; a count is an integer of at least 0.")
    executed: dict[Event, int] = {event: int(count) for event, count in history.items() if count > 0}
    _check_relations(executed)
    return dict(sorted(executed.items(), key=lambda item: _rank(item[0])))


def extend_history(past: History | None, event: Event, steps: int) -> dict[Event, int]:
    """Return `past` with `steps` more executions of `event`.

    Raises:
        ValueError: as `executed_events`, of the past and of the added event.
    """
    if steps < 0:
        raise ValueError(f"steps is {steps}; choose an integer of at least 0.")
    history = executed_events(past or {})
    _check_relations([*history, event])
    return executed_events({**history, event: history.get(event, 0) + steps})


def without(history: History, own: History) -> dict[Event, int]:
    """Return a history without the executions of one run."""
    of_run = executed_events(own)
    return {event: left for event, steps in history.items() if (left := steps - of_run.get(event, 0)) > 0}


def untruncated(history: History) -> tuple[dict[Event, int], float]:
    """Return `history` as if no sample were cut down, and the probability that one was.

    Formal guarantee (Chua et al. 2024, arXiv 2411.04205): with that probability psi, in total over the executions,
    `history` is within total variation psi of the returned one. If the latter is (epsilon, delta)-differentially
    private, the former is (epsilon, delta + (1 + e^epsilon) psi)-differentially private.

    Raises:
        ValueError: as `executed_events`.
    """
    whole: dict[Event, int] = {}
    total = 0.0
    for event, count in executed_events(history).items():
        drawn: Event = event
        if isinstance(event, TruncatedPoissonSampledGaussian):
            drawn, total = event.untruncated, total + count * truncation(event)
        whole[drawn] = whole.get(drawn, 0) + count
    return executed_events(whole), total


def truncation(event: TruncatedPoissonSampledGaussian) -> float:
    """Return the probability that one sample exceeds `event.largest_sample`, rounded up; 0 when it cannot."""
    if event.largest_sample >= event.records:
        return 0.0
    tail = float(scipy.special.bdtrc(event.largest_sample, event.records, event.sampling_rate))
    return min(tail * _ROUND_UP + float(np.finfo(float).tiny), 1.0)


def person_history(history: History, rows: int = 1, clients: int = 1) -> dict[Event, int]:
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
    for event, count in executed_events(history).items():
        released, times = _event_for_rows(event, rows)
        found[released] = found.get(released, 0) + count * times * clients
    if (steps := sum(found.values())) > UNLIMITED:
        raise ValueError(
            f"clients_per_person is {clients}, which makes {steps:,} steps in all; choose fewer steps or clients: at "
            f"most {UNLIMITED:,} steps can be composed."
        )
    return executed_events(found)


def _event_for_rows(event: Event, rows: int) -> tuple[Event, int]:
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


def _rank(event: Event) -> tuple[str, tuple[float | str, ...]]:
    return type(event).__name__, tuple(getattr(event, name) for name in event.__slots__)


def _check_relations(events: Iterable[Event]) -> None:
    relations = sorted({event.relation.value for event in events})
    if len(relations) > 1:
        raise ValueError(
            f"the history mixes the neighbouring relations {' and '.join(relations)}, and no theorem composes them; "
            "keep one account for each relation."
        )


def check_delta(delta: float) -> float:
    """Return `delta` if it is valid. Raises ValueError: it is not in (0, 1)."""
    if not (0.0 < delta < 1.0 and math.isfinite(delta)):
        raise ValueError(f"delta is {delta}; choose a probability in (0, 1), well below 1 / shard size.")
    return delta
