"""Renewal: another account for the same records, by the data owner's deliberate act."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from fedprivacy._support.durable import name_durably
from fedprivacy.guard import seals
from fedprivacy.guard.tally import TallyFile


def renew(file: Path) -> Path:
    """Rename a guard's account, beside the old name; the next charge starts a new account.

    Formal guarantee: the releases of both accounts together are (epsilon_1 + epsilon_2, delta_1 + delta_2)-
    differentially private, by basic composition. If the second budget depends on what the first account released, this
    holds for the largest budget that could have been chosen. Nothing is deleted: the old account can be read.

    Returns:
        The new name of the old account.

    Raises:
        LogError: the file is busy, damaged or not writable.
        OSError: the file cannot be renamed.
    """
    kept = TallyFile(file)
    file = kept.file
    with kept.transaction():
        aside = _aside(file, renewals(file) + 1)
        seals.move(file, kept.identity, aside)
        name_durably(file, aside)
    return aside


def renewals(file: Path) -> int:
    """Return how many former accounts lie beside an account's file."""
    return next(number for number in count() if not _aside(file, number + 1).exists())


def _aside(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")
