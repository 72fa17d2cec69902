"""Checks of a question's public arguments, before anything is spent.

Valid arguments are returned in canonical form, so that equal questions have equal texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LONGEST_NAME = 256
LARGEST_NUMBER = 1e100
"""Largest absolute value of a bound: far beyond any measurement, and far from where float64 overflows."""

LEAST_WIDTH = 1e-100
"""Smallest distance between two bounds: far from where half of it is zero."""


class QuestionError(ValueError):
    """A question cannot be asked; the error names the argument, its value and the remedy, and no record."""


def settle(instance: object, **fields: object) -> None:
    """Replace fields of a frozen dataclass by their canonical form, while it is constructed."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def brief(value: Any) -> str:
    """Format a value for a message: short, whatever it is."""
    if isinstance(value, str):
        return f"{value[:60]!r}"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**40):
        return str(value)
    return f"a {type(value).__name__}" + " of more than 40 digits" * isinstance(value, int)


def check_name(argument: str, name: object) -> None:
    """Refuse an invalid column name: it appears in logs, where no name may begin a line of its own."""
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise QuestionError(
            f"{argument} is {brief(name)}; name a column, in at most {LONGEST_NAME} printable characters."
        )


def is_writable(text: str) -> bool:
    """Return whether a text can be encoded: half of a surrogate pair cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def as_number(argument: str, value: object) -> float:
    """Return a number as a float, zero without a sign; refuse other types, and numbers too large for a measurement."""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise QuestionError(f"{argument} is a {type(value).__name__}; give a number.")
    if not abs(number) <= LARGEST_NUMBER:
        raise QuestionError(f"{argument} is {brief(number)}; give a number of at most {LARGEST_NUMBER:g} in size.")
    return float(number) + 0.0


def as_bounds(column: str, low: object, high: object) -> tuple[float, float]:
    """Return bounds as floats; refuse bounds without an interval between them."""
    least, most = as_number(f"low of {column}", low), as_number(f"high of {column}", high)
    if not most - least > max(1e-12 * max(abs(least), abs(most)), LEAST_WIDTH):
        raise QuestionError(f"{column} is bounded by {least} and {most}; give two numbers, the larger one last.")
    return least, most


def as_whole(argument: str, value: object, least: int, most: int) -> int:
    """Return a whole number; refuse anything else, or a number outside `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise QuestionError(f"{argument} is {brief(value)}; give a whole number from {least} to {most}.")
    return int(value)


def as_probability(argument: str, value: object) -> float:
    """Return a probability; refuse anything that is not above 0 and below 1."""
    probability = as_number(argument, value)
    if not 0.0 < probability < 1.0:
        raise QuestionError(f"{argument} is {probability}; give a number between 0 and 1.")
    return probability


def as_tuple(argument: str, values: object) -> tuple[Any, ...]:
    """Return several values as a tuple; refuse a single one."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise QuestionError(f"{argument} is a {type(values).__name__}; give a list.")
    return tuple(values)
