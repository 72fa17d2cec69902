"""The unit of privacy: a row, or a person with several rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

MOST_ROWS = 1024
"""Largest number of rows that a unit can have."""

PERSON_GRADIENTS = "mean", "sum"
"""Names of the gradients that a person can have: the mean of the rows' gradients, or their sum over m."""

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


def unit_of(task: Any) -> Unit:
    """Return the unit of a task's guarantee; a task that states none protects a record, which is a row."""
    unit: Unit = getattr(task, "unit", None) or RECORD
    return unit


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
    persons: Sequence[Hashable] | NDArray[Any] | Tensor | None, most_rows: int | None, rows: int
) -> tuple[Sequence[Hashable], int]:
    """Check whose each row is, and m.

    Args:
        persons: whose each row is: a list, an array or a tensor.
        most_rows: m.
        rows: number of rows.

    Raises:
        ValueError: one of the two is open, the persons are not as many as the rows, or m is out of range.
    """
    if persons is None or most_rows is None:
        raise ValueError("persons and most_rows belong together; give both, or neither.")
    if isinstance(most_rows, bool) or not isinstance(most_rows, int) or not 1 <= most_rows <= MOST_ROWS:
        raise ValueError(f"most_rows is {most_rows!r}; give a whole number from 1 to {MOST_ROWS}.")
    names: Sequence[Hashable] = persons if isinstance(persons, Sequence) else persons.tolist()
    if len(names) != rows:
        raise ValueError(f"there are {rows} rows, and persons are {len(names)}; give one for each row.")
    return names, most_rows


def first_rows(
    names: Sequence[Hashable], most_rows: int, unreadable: Sequence[bool] | None = None
) -> tuple[int, list[tuple[int, int, int]]]:
    """Find each person's first readable rows, of whom those count alone.

    Args:
        names: whose each row is.
        most_rows: m.
        unreadable: which rows do not count, one for each; None: none.

    Returns:
        The number of persons, and (person, place, row) of each row that counts. Persons are numbered in the order of
        their first row, and places from 0 to m - 1.
    """
    numbers: dict[Hashable, int] = {}
    counts: list[int] = []
    found = []
    for row, name in enumerate(names):
        person = numbers.setdefault(name, len(counts))
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
