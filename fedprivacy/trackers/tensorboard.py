"""Tracker for TensorBoard: event files in the run's folder; `tensorboard --logdir runs` shows all runs, also live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedprivacy.trackers.tracker import guarantee, scalars, settings
from fedprivacy.values.series import RoundPoint, RunFacts

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""Name of the folder of event files, inside the run's folder."""

_FLUSH_SECONDS = 1
"""Seconds after which a round is on disk. TensorBoard itself looks every five seconds."""


class TensorBoardTracker:
    """Tracker that writes a scalar for every number, and the settings and the status as text.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = SummaryWriter
        self._writer: SummaryWriter | None = None

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """Remember the run; its first round opens the file."""
        self._folder, self._private = folder / FOLDER, facts.private
        rows = [f"| {key} | {value} |" for key, value in (settings(facts) | guarantee(facts)).items()]
        self._settings = "\n".join(["| setting | value |", "|---|---|", *rows])  # Markdown, which TensorBoard shows

    def record(self, point: RoundPoint) -> None:
        """Write a round. The first round of a resumed run replaces this and later rounds of the earlier file."""
        if self._writer is None:
            self._writer = self._open(str(self._folder), purge_step=point.round, flush_secs=_FLUSH_SECONDS)
            self._writer.add_text("settings", self._settings, point.round)
        for name, value in scalars(point, private=self._private).items():
            self._writer.add_scalar(name, value, point.round)

    def end(self, status: str) -> None:
        """Write the status and close the file."""
        if self._writer is not None:
            self._writer.add_text("status", status)
            self._writer.close()
