"""Histories as texts between client and server, strictly parsed."""

from __future__ import annotations

import json

from fedprivacy.flower.wire.messages import MessageError
from fedprivacy.guard import names_a_run
from fedprivacy.values.event_codec import as_row, from_row
from fedprivacy.values.events import UNNAMED, Claims, History, PoissonSampledGaussian


def claims_text(claims: Claims) -> str:
    """Write steps by run and event as a text for the wire; the run of corrections is `UNNAMED`."""
    return json.dumps([[run_id, *as_row(event), steps] for (run_id, event), steps in claims.items()])


def claims_of(text: str) -> Claims:
    """The inverse of `claims_text`; an empty text says nothing.

    Raises:
        MessageError: it is something else, or too long to be composed.
    """
    claims = {(_run_id(run_id), _event(event)): _count(steps) for run_id, *event, steps in _rows(text, 5)}
    if len({event for _, event in claims}) > MOST_EVENTS:
        raise MessageError(f"a history names more than {MOST_EVENTS} events")
    return claims


def history_text(history: History) -> str:
    """Write steps by event as a text for the wire."""
    return json.dumps([[*as_row(event), steps] for event, steps in history.items()])


def history_of(text: str) -> dict[PoissonSampledGaussian, int]:
    """The inverse of `history_text`; an empty text says nothing.

    Raises:
        MessageError: it is something else.
    """
    history = {_event(event): _count(steps) for *event, steps in _rows(text, 4)}
    if len(history) > MOST_EVENTS:
        raise MessageError(f"a history names more than {MOST_EVENTS} events")
    return history


MOST_EVENTS = 500
"""Maximum number of events in a history: each costs accounting time, and that on the receiver's machine."""

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


def _event(row: list[object]) -> PoissonSampledGaussian:
    try:
        return from_row(row)
    except ValueError as error:
        raise MessageError(f"a history holds no event: {error}") from error


def _run_id(value: object) -> str:
    """A name that every book can hold, or that of no run."""
    if not isinstance(value, str) or not (value == UNNAMED or names_a_run(value)):
        raise MessageError("a history names a run by something else than 1 to 128 printable characters")
    return value


def _count(steps: object) -> int:
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps < 2**31:
        raise MessageError("a history counts steps by something else than an integer from 0 to 2**31")
    return steps
