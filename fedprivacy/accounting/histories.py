"""Checked histories that may be composed, and the ways they grow.

Composition theorems hold for one neighbouring relation. A history that mixes two, or has invalid counts, is refused
here, once, before any accountant sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import scipy

from fedprivacy.values.events import Event, History, TruncatedPoissonSampledGaussian

Executed = frozenset[tuple[Event, int]]
"""A history by whose value something is remembered."""

_ROUND_UP = 1.0 + 1e-6  # far above the error of the binomial tail measured against 50-digit arithmetic


def checked(history: History) -> dict[Event, int]:
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


def extended(past: History | None, event: Event, steps: int) -> dict[Event, int]:
    """Return `past` with `steps` more executions of `event`.

    Raises:
        ValueError: as `checked`, of the past and of the added event.
    """
    if steps < 0:
        raise ValueError(f"steps is {steps}; choose an integer of at least 0.")
    history = checked(past or {})
    _check_relations([*history, event])
    return checked({**history, event: history.get(event, 0) + steps})


def without(history: History, own: History) -> dict[Event, int]:
    """Return a history without the executions of one run."""
    of_run = checked(own)
    return {event: left for event, steps in history.items() if (left := steps - of_run.get(event, 0)) > 0}


def untruncated(history: History) -> tuple[dict[Event, int], float]:
    """Return `history` as if no sample were cut down, and the probability that one was.

    Formal guarantee (Chua et al. 2024, arXiv 2411.04205): with that probability psi, in total over the executions,
    `history` is within total variation psi of the returned one. If the latter is (epsilon, delta)-differentially
    private, the former is (epsilon, delta + (1 + e^epsilon) psi)-differentially private.

    Raises:
        ValueError: as `checked`.
    """
    whole: dict[Event, int] = {}
    total = 0.0
    for event, count in checked(history).items():
        drawn: Event = event
        if isinstance(event, TruncatedPoissonSampledGaussian):
            drawn, total = event.untruncated, total + count * truncation(event)
        whole[drawn] = whole.get(drawn, 0) + count
    return checked(whole), total


def truncation(event: TruncatedPoissonSampledGaussian) -> float:
    """Return the probability that one sample exceeds `event.largest_sample`, rounded up; 0 when it cannot."""
    if event.largest_sample >= event.records:
        return 0.0
    tail = float(scipy.special.bdtrc(event.largest_sample, event.records, event.sampling_rate))
    return min(tail * _ROUND_UP + float(np.finfo(float).tiny), 1.0)


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
    """Return `delta` if it is valid.

    Raises:
        ValueError: it is not in (0, 1).
    """
    if not (0.0 < delta < 1.0 and math.isfinite(delta)):
        raise ValueError(f"delta is {delta}; choose a probability in (0, 1), well below 1 / shard size.")
    return delta
