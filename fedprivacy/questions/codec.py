"""Codec of questions: the text that is sent and stored, and by which a question is recognised."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from fedprivacy.questions.arguments import QuestionError, shown
from fedprivacy.questions.conditions import Condition, OneOf, Within
from fedprivacy.questions.counts import Categories, Count, HeavyHitters, Histogram, RowCount
from fedprivacy.questions.moments import Bounded, Covariance, Mean, Spread, Sum
from fedprivacy.questions.quantiles import Quantiles
from fedprivacy.questions.question import Question
from fedprivacy.values.wording import question_text

_KINDS = Count, RowCount, Categories, HeavyHitters, Histogram, Sum, Mean, Spread, Covariance, Quantiles

KINDS: Mapping[str, type[Any]] = {kind.kind: kind for kind in _KINDS}
"""Every kind of question, by its name in a text and in a data owner's list of allowed questions."""

LONGEST_TEXT = 1_000_000


def as_text(question: Question) -> str:
    """Write a question as its only text: JSON in ASCII, sorted, without spaces.

    >>> as_text(Mean(of=(Bounded("age", 0, 120),)))
    '{"by":null,"kind":"mean","of":[{"column":"age","high":120.0,"low":0.0}],"where":[]}'
    """
    fields = {field.name: getattr(question, field.name) for field in dataclasses.fields(question)}
    fields["kind"] = question.kind
    return json.dumps(fields, default=dataclasses.asdict, sort_keys=True, separators=(",", ":"), allow_nan=False)


def words_of(text: str) -> str:
    """Describe a question's text for people; the text may come from anybody.

    >>> words_of(as_text(Mean(of=(Bounded("age", 0, 120),), where=(OneOf("sex", ("f",)),))))
    'mean of age, where sex is f'
    """
    try:
        return of_text(text).sentence
    except QuestionError:  # from a later version, or from somebody else
        return question_text(text)


def of_text(text: str) -> Question:
    """Return the question that `as_text` wrote; the text may come from anybody and is checked.

    Raises:
        QuestionError: the text is no question, or one that cannot be asked.
    """
    if len(text) > LONGEST_TEXT:
        raise QuestionError(f"a question has {len(text)} characters; {LONGEST_TEXT} is the most.")
    try:
        fields = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise QuestionError("a question is no JSON, or says something twice.") from error
    if not isinstance(fields, dict) or not isinstance(name := fields.pop("kind", None), str):
        raise QuestionError("a question names no kind.")
    if (kind := KINDS.get(name)) is None:
        raise QuestionError(f"the question's kind is {shown(name)}; choose one of {', '.join(KINDS)}.")
    _check_fields(kind, fields)
    question: Question = kind(**{key: _read(key, value) for key, value in fields.items()})
    return question


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) < len(pairs):
        raise ValueError
    return fields


def _check_fields(kind: type[Any], fields: Mapping[str, object]) -> None:
    if fields.keys() != (known := {field.name for field in dataclasses.fields(kind)}):
        raise QuestionError(f"a {kind.__name__} has the fields {', '.join(sorted(known))}, and others are given.")


def _read(key: str, value: Any) -> object:
    """Convert a field's value: nested fields become dataclasses, and lists tuples."""
    match key:
        case "where":
            return tuple(_condition(fields) for fields in _list(key, value))
        case "by":
            return None if value is None else _one_of(value)
        case "of":
            return tuple(_made(Bounded, fields) for fields in _list(key, value))
        case "levels" | "at":
            return tuple(_list(key, value))
    return value


def _condition(fields: object) -> Condition:
    if isinstance(fields, dict) and "levels" in fields:
        return _one_of(fields)
    within: Within = _made(Within, fields)
    return within


def _one_of(fields: object) -> OneOf:
    if isinstance(fields, dict):
        fields = fields | {"levels": tuple(_list("levels", fields.get("levels")))}
    one_of: OneOf = _made(OneOf, fields)
    return one_of


def _made(kind: type[Any], fields: object) -> Any:
    if not isinstance(fields, dict):
        raise QuestionError(f"a {kind.__name__} is a {type(fields).__name__}; give its fields.")
    _check_fields(kind, fields)
    return kind(**fields)


def _list(key: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise QuestionError(f"{key} is a {type(value).__name__}; give a list.")
    return value
