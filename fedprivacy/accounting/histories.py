"""What may be composed: a checked history, and the ways it grows.

Composition theorems hold for one neighbouring relation. A history that mixes two, or counts that are no counts, are
refused here, once, before any accountant sees them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedprivacy.events import Event, History


def checked(history: History) -> dict[Event, int]:
    """The events of `history` that were executed at least once, in a fixed order: sums must not depend on another.

    Raises:
        ValueError: a count is negative or not an integer, or the events state different neighbouring relations.
    """
    for event, count in history.items():
        if count != int(count) or count < 0:
            raise ValueError(f"the history counts {event} {count} times; a count is an integer of at least 0.")
    executed = {event: int(count) for event, count in history.items() if count > 0}
    _check_relations(executed)
    return dict(sorted(executed.items()))


def extended(past: History | None, event: Event, steps: int) -> dict[Event, int]:
    """`past` and `steps` more executions of `event`.

    Raises:
        ValueError: as `checked`, of the past and of the added event.
    """
    if steps < 0:
        raise ValueError(f"steps is {steps}; choose an integer of at least 0.")
    history = checked(past or {})
    _check_relations([*history, event])
    return checked({**history, event: history.get(event, 0) + steps})


def _check_relations(events: Iterable[Event]) -> None:
    relations = sorted({event.relation.value for event in events})
    if len(relations) > 1:
        raise ValueError(
            f"the history mixes the neighbouring relations {' and '.join(relations)}, and no theorem composes them; "
            "keep one account for each relation."
        )


def check_delta(delta: float) -> float:
    """`delta` itself.

    Raises:
        ValueError: it is no probability in (0, 1).
    """
    if not (0.0 < delta < 1.0 and math.isfinite(delta)):
        raise ValueError(f"delta is {delta}; choose a probability in (0, 1), well below 1 / shard size.")
    return delta
