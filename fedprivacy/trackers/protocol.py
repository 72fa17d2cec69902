"""What a tracker is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fedprivacy.values.series import RoundPoint, RunFacts


class Tracker(Protocol):
    """Is told of a run and of its finished rounds, in order; may fail without harm."""

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """A run begins, or goes on, whose files are in `folder`."""
        ...

    def record(self, point: RoundPoint) -> None:
        """A round is finished."""
        ...

    def end(self, status: str) -> None:
        """The run is over: "finished", "stopped" before its last round, or "failed" with an error."""
        ...
