"""Turns a run into files: rounds as they finish, then model, figure and report."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import nn

from fedprivacy.figures import run_figure, save_png
from fedprivacy.history import FIGURE, MODEL, REPORT, START, RunWriter, read_history
from fedprivacy.plan import RunPlan
from fedprivacy.report import write_report
from fedprivacy.rounds import RoundRecord
from fedprivacy.tasks import Task


class Recorder:
    """One run's folder.

    Args:
        folder: where the files go.
        plan: the run's public numbers.
        resume_from: the last finished round of a run that goes on; None: a new run.
    """

    def __init__(self, folder: Path, plan: RunPlan, resume_from: int | None = None) -> None:
        self.folder = folder
        self._write = RunWriter(folder, plan, resume_from)

    def __call__(self, record: RoundRecord) -> None:
        """Write a finished round."""
        self._write(record)

    def finish(self, arrays: ArrayRecord | None) -> None:
        """Write the model, and draw what there is."""
        if arrays is not None:
            save_file({name: array.numpy() for name, array in arrays.items()}, self.folder / MODEL)
        history = read_history(self.folder) if (self.folder / START).exists() else None
        if history and history.rounds:
            save_png(run_figure(history), self.folder / FIGURE)
            write_report(history, self.folder / REPORT)


def read_model(folder: str | Path, task: Task) -> nn.Module:
    """The model that a run of `task` left in its folder, ready to predict."""
    model = task.model()
    model.load_state_dict(load_file(Path(folder) / MODEL), strict=False)
    return model.eval()
