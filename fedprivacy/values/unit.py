"""The unit of privacy: a row, or a person with several rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivacy.values.cell_text import LOST, canonical, plain, text

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

MOST_ROWS = 1024
"""Largest number of rows that a unit can have."""

PERSON_GRADIENTS = "mean", "sum"
"""Names of the gradients that a person can have: the mean of the rows' gradients, or their sum over m."""

NAMELESS = frozenset(
    [
        *("nan", "NaN", "-nan", "NaT", "None", "none", "<NA>", "NA", "na", "N/A", "n/a", "NULL", "Null", "null"),
        *("(null)", "#NA", "#N/A", "#NULL!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#DIV/0!", "\\N", "?", "."),
    ]
)
"""Texts that pandas, R, SQL, SAS, SPSS and spreadsheets write for nothing or a fault: no identifier."""

FLOATING = (
    "persons are floating-point numbers, as pandas makes of whole numbers where one is missing: long ones become the "
    "same; give whole numbers or texts, for example frame['patient'].astype('Int64')."
)

_LONGEST_NAME = 40

_LEAST = -(2**63)


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of privacy: the guarantee holds for everything that a shard holds of one.

    >>> import fedprivacy as fp
    >>> str(fp.Unit()), str(fp.Unit("patient", 8))
    ('record', 'patient (at most 8 rows)')

    Attributes:
        name: the task's own word for it, such as "patient".
        rows: m, the most rows of one that a shard holds, public; 1: a row is one.

    Raises:
        ValueError: the name is no word, or the number of rows is out of range.
    """

    name: str = "record"
    rows: int = 1

    def __post_init__(self) -> None:
        if not (self.name.replace(" ", "").replace("-", "").isalpha() and len(self.name) <= _LONGEST_NAME):
            raise ValueError(
                f"a unit's name is {self.name!r}; give a word of at most {_LONGEST_NAME} letters, such as 'patient'."
            )
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or not 1 <= self.rows <= MOST_ROWS:
            raise ValueError(f"a unit's rows are {self.rows!r}; give a whole number from 1 to {MOST_ROWS}.")

    def __str__(self) -> str:
        return self.name if self.rows == 1 else f"{self.name} (at most {self.rows} rows)"

    @classmethod
    def of(cls, text: str) -> Unit:
        """Read what `str` wrote.

        Raises:
            ValueError: the text is no unit.
        """
        name, _, rest = text.partition(" (at most ")
        rows = rest.removesuffix(" rows)") or "1"
        unit = cls(name, int(rows) if rows.isdecimal() else 0)
        if str(unit) != text:
            raise ValueError(f"{text!r} is no unit of privacy.")
        return unit


RECORD = Unit()
"""The unit of every task that names none: a row."""


def check_rows_in_a_step(rows: int, per_step: object, gradient: object) -> None:
    """Check how a step uses a person's rows.

    Args:
        rows: m, the most rows of a record.
        per_step: number of rows that are drawn for each step; None: all.
        gradient: one of `PERSON_GRADIENTS`.

    Raises:
        ValueError: one of the two is out of range, or a record is a row, which has nothing to draw or to add up.
    """
    if gradient not in PERSON_GRADIENTS:
        raise ValueError(f"person_gradient is {gradient!r}; choose one of {', '.join(PERSON_GRADIENTS)}.")
    if rows == 1 and (per_step is not None or gradient != "mean"):
        name, value = ("person_gradient", gradient) if per_step is None else ("rows_per_step", per_step)
        raise ValueError(
            f"{name} is {value!r}, and a record is one row; leave it open, or say whose the rows are: "
            "fp.Shard(..., persons=, most_rows=), and in a task unit = fp.Unit('patient', 8)."
        )
    if per_step is not None and (
        isinstance(per_step, bool) or not isinstance(per_step, int) or not 1 <= per_step <= rows
    ):
        raise ValueError(f"rows_per_step is {per_step!r}; give a whole number from 1 to {rows}, the most rows.")


def checked_persons(
    persons: Sequence[Hashable] | NDArray[Any] | Tensor | None,
    most_rows: int | None,
    rows: int,
    text_of: Callable[[Any], str] | None = None,
) -> tuple[list[int], int]:
    """Check whose each row is, and m.

    Args:
        persons: whose each row is: a list, an array or a tensor; see `person_numbers`.
        most_rows: m.
        rows: number of rows.
        text_of: text of an identifier, "" for none; None: as it stands.

    Returns:
        The number of each row's person, and m.

    Raises:
        ValueError: one of the two is open, the persons are not as many as the rows, m is out of range, or an identifier
            is a floating-point number.
    """
    if persons is None or most_rows is None:
        raise ValueError("persons and most_rows belong together; give both, or neither.")
    if isinstance(most_rows, bool) or not isinstance(most_rows, int) or not 1 <= most_rows <= MOST_ROWS:
        raise ValueError(f"most_rows is {most_rows!r}; give a whole number from 1 to {MOST_ROWS}.")
    names: Sequence[Hashable] = persons if isinstance(persons, Sequence) else persons.tolist()
    if len(names) != rows:
        raise ValueError(f"there are {rows} rows, and persons are {len(names)}; give one for each row.")
    if rows and "float" in str(getattr(persons, "dtype", "")).lower():
        raise ValueError(FLOATING)
    return person_numbers(names, text_of), most_rows


def person_numbers(names: Iterable[Hashable], text_of: Callable[[Any], str] | None = None) -> list[int]:
    """Return the number of each row's person; persons are numbered in the order of their first row.

    Two rows are one person's if their identifiers have one text, whatever types they have: 7 is "7". A row without an
    identifier is a person by itself: None, NaN, NaT, pandas' NA, a blank text, one that programs write for these
    (`NAMELESS`), or one with bytes that were lost. A tuple is one if each part is, such as of hospital and patient.

    >>> person_numbers(["a", 7, None, "7", None, "a"])
    [0, 1, 2, 1, 3, 0]

    Raises:
        ValueError: an identifier is a floating-point number, or cannot be one.
    """
    seen: dict[str | int, int] = {}  # as given: most rows are of a person who was seen before
    known: dict[Hashable, int] = {}
    numbers, count = list[int](), 0
    for name in names:
        quick = name if isinstance(name, str | int) and type(name) in (str, int) else None
        number = None if quick is None else seen.get(quick)
        if number is None:
            whose = _identifier(name, text_of or (lambda value: canonical(text(value))))
            number = count if whose is None else known.setdefault(whose, count)
            count += number == count
            if quick is not None and whose is not None:
                seen[quick] = number
        numbers.append(number)
    return numbers


def identifier(words: str) -> str | None:
    """Return the identifier that a text is; None: it is none."""
    return None if not words or words in NAMELESS or LOST in words else words


def _identifier(name: Hashable, text_of: Callable[[Any], str]) -> Hashable:
    """Return the identifier of a person; None: it is not said."""
    if isinstance(name, tuple):
        parts = [_identifier(part, text_of) for part in name]
        return None if None in parts else tuple(parts)
    value = plain(name)
    if isinstance(value, float | np.floating):
        raise ValueError(FLOATING)
    if value is None or isinstance(value, str | int | Decimal | date):
        return identifier(text_of(value))
    if not isinstance(value, Hashable):
        raise ValueError(f"persons hold a {type(value).__name__}; give a text or a whole number for each row.")
    return value


def first_rows(
    numbers: Sequence[int], most_rows: int, unreadable: Sequence[bool] | None = None
) -> tuple[int, list[tuple[int, int, int]]]:
    """Find each person's first readable rows, of whom those count alone.

    Args:
        numbers: number of each row's person, see `person_numbers`.
        most_rows: m.
        unreadable: which rows do not count, one for each; None: none.

    Returns:
        The number of persons, and (person, place, row) of each row that counts. Persons are numbered in the order of
        their first row, and places from 0 to m - 1.
    """
    counts: list[int] = []
    found = []
    for row, person in enumerate(numbers):
        if person == len(counts):
            counts.append(0)
        if counts[person] < most_rows and not (unreadable and unreadable[row]):
            found.append((person, counts[person], row))
            counts[person] += 1
    return len(counts), found


def missing(targets: Tensor) -> Tensor:
    """Mark the rows that are not there, of persons with fewer than m: their targets are missing.

    Args:
        targets: shape [persons, m, ...]: NaN, or the least whole number of 64 bits, where a row is missing.

    Returns:
        A mask, bool, shape [persons, m].
    """
    absent = targets.isnan() if targets.is_floating_point() else targets == _LEAST
    return absent.unsqueeze(-1).flatten(2).any(2)


def missing_target(targets: Tensor) -> float | int:
    """Return the value that marks a missing row among such targets."""
    return float("nan") if targets.is_floating_point() else _LEAST
