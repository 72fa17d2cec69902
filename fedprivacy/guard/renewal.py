"""Another account for the same records, by the data owner's deliberate act."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from fedprivacy._support.durable import name_durably
from fedprivacy.guard import seals
from fedprivacy.guard.tally import TallyFile


def renew(file: Path) -> Path:
    """Put a guard's account aside, under another name beside it; the next charge begins a new one.

    Formal guarantee: what the two accounts release together is (epsilon_1 + epsilon_2, delta_1 + delta_2)-
    differentially private, by basic composition; if the second budget was chosen by what the first account released,
    then for the largest that could have been chosen. Nothing is deleted: the account that was put aside can be read.

    Returns:
        Its new name.

    Raises:
        LogError: the file is busy, damaged or not writable.
        OSError: it cannot be renamed.
    """
    kept = TallyFile(file)
    file = kept.file
    with kept.transaction():
        names = (file.with_name(f"{file.name}.{number}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        seals.move(file, kept.identity, aside)
        name_durably(file, aside)
    return aside
