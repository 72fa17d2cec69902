"""Histories as texts that cross between client and server, strictly parsed."""

from __future__ import annotations

import json
from typing import Any

from fedprivacy.flower.wire.crossing import MessageError
from fedprivacy.guard import names_a_run
from fedprivacy.values.events import Claims, Event, History, NeighbouringRelation, PoissonSampledGaussian


def claims_text(claims: Claims) -> str:
    """Steps by run and event, as a text that crosses."""
    return json.dumps([[run_id, *_event_fields(event), steps] for (run_id, event), steps in claims.items()])


def claims_of(text: str) -> Claims:
    """The inverse of `claims_text`; an empty text says nothing.

    Raises:
        MessageError: it is something else, or too long to be composed.
    """
    claims = {(_run_id(run_id), _event(*event)): _count(steps) for run_id, *event, steps in _rows(text, 5)}
    if len({event for _, event in claims}) > MOST_EVENTS:
        raise MessageError(f"a history names more than {MOST_EVENTS} events")
    return claims


def history_text(history: History) -> str:
    """Steps by event, as a text that crosses."""
    return json.dumps([[*_event_fields(event), steps] for event, steps in history.items()])


def history_of(text: str) -> dict[PoissonSampledGaussian, int]:
    """The inverse of `history_text`; an empty text says nothing.

    Raises:
        MessageError: it is something else.
    """
    history = {_event(*event): _count(steps) for *event, steps in _rows(text, 4)}
    if len(history) > MOST_EVENTS:
        raise MessageError(f"a history names more than {MOST_EVENTS} events")
    return history


MOST_EVENTS = 500
"""That a history may name: each costs an accountant time, and whoever composes it is not who sent it."""

_MOST_ROWS = 10_000
_MOST_CHARACTERS = 4_000_000


def _rows(text: str, width: int) -> list[list[object]]:
    if len(text) > _MOST_CHARACTERS:
        raise MessageError(f"a history has more than {_MOST_CHARACTERS} characters")
    try:
        rows = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise MessageError("a history is no JSON") from error
    if not isinstance(rows, list) or len(rows) > _MOST_ROWS:
        raise MessageError(f"a history is no list of at most {_MOST_ROWS} rows")
    if not all(isinstance(row, list) and len(row) == width for row in rows):
        raise MessageError(f"a row of a history has not {width} values")
    return rows


def _event_fields(event: Event) -> list[float | str]:
    if not isinstance(event, PoissonSampledGaussian):
        raise TypeError(f"a {type(event).__name__} cannot cross; a run charges Poisson-sampled Gaussians alone.")
    return [event.sampling_rate, event.noise_multiplier, event.relation.value]


def _event(sampling_rate: object, noise_multiplier: object, relation: object) -> PoissonSampledGaussian:
    try:
        return PoissonSampledGaussian(
            float(_checked(sampling_rate, float, int)),
            float(_checked(noise_multiplier, float, int)),
            NeighbouringRelation(_checked(relation, str)),
        )
    except (ValueError, OverflowError) as error:
        raise MessageError(f"a history holds no event: {error}") from error


def _run_id(value: object) -> str:
    """A name that every book can hold."""
    run_id: str = _checked(value, str)
    if not names_a_run(run_id):
        raise MessageError("a history names a run by something else than 1 to 128 printable characters")
    return run_id


def _count(steps: object) -> int:
    count: int = _checked(steps, int)
    if not 0 <= count < 2**31:
        raise MessageError(f"a history counts {count} steps")
    return count


def _checked(value: object, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise MessageError(f"a history holds a {type(value).__name__}; expected {kinds[0].__name__}")
    return value
