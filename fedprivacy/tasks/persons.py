"""Rows by person: each person's first rows side by side, and missing ones where there are fewer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedprivacy.values.unit import checked_persons, first_rows, missing_target

_Joined = tuple[Tensor, Tensor, Tensor | None, int]
"""Inputs and targets [persons, m, ...], mask of the null persons, and m."""


def rows_of_persons(
    inputs: Tensor,
    targets: Tensor,
    null: Tensor | None,
    persons: Sequence[Hashable] | Tensor | None,
    most_rows: int | None,
) -> _Joined:
    """Join each person's first `most_rows` readable rows; persons come in the order of their first row.

    A person's part depends on that person's rows alone. Of m = 1, the person is the row, without a further axis.

    Args:
        inputs, targets: shape [rows, ...].
        null: mask of the rows that cannot be read, bool, shape [rows]; None: not stated.
        persons: whose each row is.
        most_rows: m.

    Raises:
        ValueError: the persons are not as many as the rows, m is out of range or open, or targets have no value that
            can mark a missing row.
    """
    numbers, most_rows = checked_persons(persons, most_rows, len(inputs))
    if not targets.is_floating_point():
        if targets.dtype is torch.bool or targets.is_complex():
            raise ValueError(f"targets are {targets.dtype}; give persons' targets as whole numbers or floats.")
        targets = targets.long()
    count, firsts = first_rows(numbers, most_rows, None if null is None else null.tolist())
    joined = inputs.new_zeros(count, most_rows, *inputs.shape[1:])  # with copies of the first where one is missing
    aimed = targets.new_full((count, most_rows, *targets.shape[1:]), missing_target(targets))
    nobody = None if null is None else torch.ones(count, dtype=torch.bool, device=inputs.device)
    if firsts:
        person, place, row = torch.tensor(firsts, device=inputs.device).unbind(1)
        joined[person[place == 0]] = inputs[row[place == 0]].unsqueeze(1)
        joined[person, place] = inputs[row]
        if nobody is not None:
            nobody[person] = False
        person, place, row = (numbers.to(targets.device) for numbers in (person, place, row))
        aimed[person, place] = targets[row]
    return (joined, aimed, nobody, most_rows) if most_rows > 1 else (joined[:, 0], aimed[:, 0], nobody, 1)
