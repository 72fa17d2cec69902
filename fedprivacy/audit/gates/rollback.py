"""An older copy of a client's own book, put back: what was charged since must not be forgotten."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedprivacy.guard import Guard, LogError
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian


def forgotten() -> Iterator[str]:
    """What is wrong with the guard, in words: a charge whose sealed update is there, and that it knows no more of."""
    event, budget = PoissonSampledGaussian(1.0, 5.0), PrivacyBudget(3.0, 1e-5)
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "guard.log"
        guard = Guard(book, budget)
        older = book.read_bytes()
        guard.charge(Attempt("audit", 1), event, 1)
        guard.seal(Attempt("audit", 1), b"an update")
        book.write_bytes(older)
        try:
            Guard(book, budget).charge(Attempt("audit", 2), event, 1)
        except LogError:
            return
        yield "An older copy of a client's own book, put back, is believed: what it spent since is forgotten."
