"""Named arrays on the wire, models and answers, checked before anything in them is used.

Both sides read each other's arrays here. Nothing is unpickled, no more memory is allocated than the bytes that arrived,
and the type and shape that an array states outside of its bytes are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import NoisyTotals

LARGEST = 1e15
"""Largest absolute value of a parameter: no real model exceeds it, and a client that does would end the run for all."""


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
    return {name: _checked(name, record[name], form) for name, form in forms.items()}


def _checked(name: str, array: Array, form: Form) -> NDArray[Any]:
    try:
        values = _decoded(array, form)
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


def _decoded(array: Array, form: Form) -> NDArray[Any]:
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


def of_arrays(asked: Questionnaire, arrays: Mapping[str, NDArray[Any]]) -> list[NoisyTotals]:
    """The inverse of `as_arrays`, of arrays in the shapes of `blank`."""
    return [NoisyTotals.from_rows(arrays[_answer(number)]) for number, _ in enumerate(asked.questions)]


def _answer(number: int) -> str:
    return f"answer-{number}"
