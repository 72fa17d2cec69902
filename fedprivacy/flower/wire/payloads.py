"""The payloads of messages between server and clients, checked before anything in them is used.

Histories travel as texts, strictly parsed; models and answers as named arrays. Of arrays nothing is unpickled, no more
memory is allocated than the bytes that arrived, and the type and shape that an array states outside of its bytes are
ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedprivacy.flower.wire.messages import MessageError
from fedprivacy.guard import names_a_run
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals
from fedprivacy.values.events import UNNAMED, Claims, History, PoissonSampledGaussian, as_row, from_row

LARGEST = 1e15
"""Largest absolute value of a parameter: no real model exceeds it, and a client that does would end the run for all."""


def claims_text(claims: Claims) -> str:
    """Write steps by run and event as a text for the wire; the run of corrections is `UNNAMED`."""
    return json.dumps([[run_id, *as_row(event), steps] for (run_id, event), steps in claims.items()])


def claims_of(text: str) -> Claims:
    """The inverse of `claims_text`; an empty text says nothing.

    Raises:
        MessageError: it is something else, or too long to be composed.
    """
    claims = {(_run_id(run_id), _event(event)): _count(steps) for run_id, *event, steps in _rows(text, 5)}
    if len({event for _, event in claims}) > _MOST_EVENTS:
        raise MessageError(f"a history names more than {_MOST_EVENTS} events")
    return claims


def history_text(history: History) -> str:
    """Write steps by event as a text for the wire."""
    return json.dumps([[*as_row(event), steps] for event, steps in history.items()])


def history_of(text: str) -> dict[PoissonSampledGaussian, int]:
    """The inverse of `history_text`; an empty text says nothing. Raises MessageError: it is something else."""
    history = {_event(event): _count(steps) for *event, steps in _rows(text, 4)}
    if len(history) > _MOST_EVENTS:
        raise MessageError(f"a history names more than {_MOST_EVENTS} events")
    return history


_MOST_EVENTS = 500
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


class Form(NamedTuple):
    """Shape and type that an array must have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class ArraysError(ValueError):
    """Arrays that are not the model's; the text is a constant code, after a colon with the parameter's own name."""


def checked_arrays(record: object, forms: Mapping[str, Form]) -> dict[str, NDArray[Any]]:
    """Decode arrays from the wire.

    Args:
        record: the record from the wire.
        forms: the required form of each array, by name.

    Returns:
        The arrays, by name in the order of `forms`: contiguous, finite, at most `LARGEST`.

    Raises:
        ArraysError: one is missing, too many, undecodable, of another type or shape, not finite or too large.
    """
    if not isinstance(record, ArrayRecord) or record.keys() != forms.keys():
        raise ArraysError("wrong-arrays")
    return {name: _check_array(name, record[name], form) for name, form in forms.items()}


def _check_array(name: str, array: Array, form: Form) -> NDArray[Any]:
    try:
        values = _decode_array(array, form)
    except ArraysError as error:
        raise ArraysError(f"{error}:{name}") from error
    except Exception as error:  # whatever bytes may come
        raise ArraysError(f"undecodable:{name}") from error
    if values.size:
        low, high = values.min(), values.max()  # NaN if there is one
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ArraysError(f"not-finite:{name}")
        if max(-low, high) > LARGEST:
            raise ArraysError(f"too-large:{name}")
    return values


def _decode_array(array: Array, form: Form) -> NDArray[Any]:
    """The array of NumPy's format 1 or 2 in these bytes; its header is compared with `form` before allocation."""
    stream = BytesIO(array.data)
    version = npy.read_magic(stream)
    read_head = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, dtype = read_head(stream)
    if (shape, dtype) != form:
        raise ArraysError("wrong-shape")
    if len(array.data) - stream.tell() != math.prod(shape) * dtype.itemsize:
        raise ArraysError("undecodable")
    order: Literal["F", "C"] = "F" if by_columns else "C"
    values: NDArray[Any] = np.ndarray(shape, dtype, array.data, stream.tell(), order=order)
    return np.array(values, order="C")


def as_arrays(answers: Sequence[NoisyTotals]) -> dict[str, NDArray[np.int64]]:
    """Answers to the questions of one questionnaire, in their order, as whole numbers; see `NoisyTotals.rows`."""
    return {_answer(number): answer.rows for number, answer in enumerate(answers)}


def blank(asked: Questionnaire) -> dict[str, NDArray[np.int64]]:
    """Arrays of zeros in the shapes that answers have: public."""
    shapes = [(len(question.groups), 1 + question.width) for question in asked.questions]
    return {_answer(number): np.zeros(shape, dtype=np.int64) for number, shape in enumerate(shapes)}


def from_arrays(asked: Questionnaire, arrays: Mapping[str, NDArray[Any]]) -> list[NoisyTotals]:
    """The inverse of `as_arrays`, of arrays in the shapes of `blank`."""
    return [NoisyTotals.from_rows(arrays[_answer(number)]) for number, _ in enumerate(asked.questions)]


def _answer(number: int) -> str:
    return f"answer-{number}"
