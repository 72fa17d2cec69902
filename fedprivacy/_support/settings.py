"""Settings: dataclass fields with a help text and bounds, and one report of every problem with the given values.

People write `noise-multiplier` where the field is `noise_multiplier`. None, or an empty string, leaves a setting open.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedprivacy._support.sources import is_source

Value = bool | int | float | str

Fields = Mapping[str, dataclasses.Field[Any]]
"""The fields of a dataclass of settings, by hyphenated key."""

WHOLE = (1, 10**9)
"""Bounds of a number of things that there is at least one of."""

LEAST = 5e-324
"""The smallest positive number."""

KIND_WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}

_TECHNICAL = 1e-4
"""Positive bounds below it are for the arithmetic's sake."""

_NAMED_BOUNDS = {10**6: "a million", 10**9: "a billion", 1e30: "10^30", 2**63 - 1: "2^63 - 1"}


class ConfigError(ValueError):
    """Every problem with a configuration, one line each."""

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))


def setting(
    words: str,
    default: Any = dataclasses.MISSING,
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    choices: Collection[str] | None = None,
    or_source: bool = False,
    check: Callable[[str], object] | None = None,
) -> Any:
    """A field with its documentation, and what it may be.

    Args:
        words: its help text.
        default: of the field.
        bounds: smallest and largest value of a number.
        choices: the texts to choose from, as they are when a value is checked; None: any.
        or_source: whether `path/to/file.py:name` is as good as one of the choices.
        check: raises a `ValueError` that says what is wrong with a text; None: any text will do.
    """
    known = {"help": words, "bounds": bounds, "choices": choices, "or_source": or_source, "check": check}
    return dataclasses.field(default=default, metadata=known)


def fields_of(settings: type) -> dict[str, dataclasses.Field[Any]]:
    """The field of every key, in order."""
    return {key_of(field.name): field for field in dataclasses.fields(settings)}


def key_of(name: str) -> str:
    """Return the hyphenated form in which people write a field's name."""
    return name.replace("_", "-")


def kind_of(field: dataclasses.Field[Any]) -> str:
    """The type of a setting's value, "bool", "int", "float" or "str", whether or not it may be left open."""
    return str(field.type).split(" | ", maxsplit=1)[0]


def names_in(text: str) -> list[str]:
    """Names that are separated by commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def no_settings(keys: Iterable[str], fields: Fields) -> dict[str, str]:
    """A problem for each key that names no setting: which may have been meant; the first with none near lists all."""
    problems, listed = {}, f"; the settings are {', '.join(fields)}"
    for key in keys:
        if key in fields:
            continue
        flower_s = [name for name in fields if key.endswith(f"-{name}")]  # such as num-server-rounds
        if meant := get_close_matches(key, fields, 1) or flower_s:
            problems[key] = f"{key} is not a setting. Did you mean {' or '.join(meant)}?"
        else:
            problems[key] = f"{key} is not a setting{listed}."
            listed = ""
    return problems


def is_printable(text: str) -> bool:
    """Return whether a text, maybe of several lines, has only characters that a terminal shows as they are."""
    return text.replace("\n", "").replace("\t", "").isprintable()


def parse(fields: Fields, given: Mapping[str, Value | None]) -> tuple[dict[str, Value], dict[str, str]]:
    """Convert the values that are not left open to their declared types, by field name; list a problem for each other
    key.

    A problem's key is the field's name where there is such a field.
    """
    settings: dict[str, Value] = {}
    values = {key: value for key, value in given.items() if value is not None and value != ""}
    problems = no_settings(values, fields)
    for key, value in values.items():
        if key in problems:
            continue
        if (parsed := _as_type(value, kind := kind_of(fields[key]))) is None:
            problems[fields[key].name] = f"{key} is {value!r}; give {KIND_WORDS[kind]}."
        else:
            settings[fields[key].name] = parsed
    return settings, problems


def _as_type(value: Value, kind: str) -> Value | None:
    """The value as `kind`, or None if it is not one. TOML writes whole floats as integers; nothing else converts."""
    if kind == "str":
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or kind == "bool":
        return value if isinstance(value, bool) and kind == "bool" else None
    if not isinstance(value, int | float):
        return None
    if kind == "float":
        return float(value) if not math.isnan(value) else None
    return value if isinstance(value, int) else None


def not_allowed(fields: Fields, settings: Mapping[str, Value]) -> dict[str, str]:
    """Return a problem, by field name, for every value of the right type that is out of bounds or not a choice."""
    problems = {}
    for key, field in fields.items():
        value, (low, high), choices = settings.get(field.name), field.metadata["bounds"], field.metadata["choices"]
        check = field.metadata["check"]
        if isinstance(value, int | float) and not low <= value <= high:
            kind = KIND_WORDS[kind_of(field)]
            problems[field.name] = f"{key} is {value}; choose {kind} {range_words(low, high, value)}."
        elif isinstance(value, str) and choices is not None and value not in choices:
            or_source = ", or write path/to/file.py:name" if field.metadata["or_source"] else ""
            if not (or_source and is_source(value)):
                problems[field.name] = f"{key} is '{value}'; choose one of {', '.join(choices)}{or_source}."
        elif isinstance(value, str) and value and check is not None:
            try:
                check(value)
            except ValueError as error:
                problems[field.name] = str(error)
    return problems


def without_folder(setting: str, file: Path) -> str:
    """Return the problem with the name of a file to be made if its folder does not exist; else an empty text."""
    if file.parent.is_dir():
        return ""
    return f"{setting} is '{file}', and there is no folder '{file.parent}'; make it, or name a file elsewhere."


def range_words(low: float, high: float, value: float) -> str:
    """Describe the range of a number, for the error about a value outside it.

    A lower bound that is there for the arithmetic's sake is "above 0", unless the value is between the two.

    >>> range_words(5e-324, math.inf, 0.0), range_words(1, 10**9, 0), range_words(0, 2**63 - 1, -3)
    ('above 0, or inf', 'from 1 to a billion', 'from 0 to 2^63 - 1')
    >>> range_words(1e-300, 0.999, 2.0), range_words(1e-300, 0.999, 1e-301)
    ('above 0, at most 0.999', 'from 1e-300 to 0.999')
    """
    if not (0.0 < low < _TECHNICAL and not 0.0 < value < low):
        return f"from {_bound_words(low)} to {_bound_words(high)}"
    return "above 0, " + ("or inf" if high == math.inf else f"at most {_bound_words(high)}")


def _bound_words(bound: float) -> str:
    return _NAMED_BOUNDS.get(bound) or (f"{bound:,g}" if abs(bound) >= _TECHNICAL else f"{bound:g}")
