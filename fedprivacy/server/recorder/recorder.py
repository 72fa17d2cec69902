"""One recorder for every consumer: rounds as they finish, then model, figure and report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import ArrayRecord
from safetensors.numpy import save_file

from fedprivacy.figures import run_figure, save_png
from fedprivacy.runs.folder import FIGURE, MODEL, REPORT, START, RunWriter, read_history
from fedprivacy.runs.plan import RunPlan
from fedprivacy.runs.report import write_report
from fedprivacy.server.recorder.storing import StoreFeed
from fedprivacy.trackers import Feed, Tracker
from fedprivacy.values.rounds import Phase, RoundResult
from fedprivacy.values.runs import RunStatus
from fedprivacy.values.series import RunFacts


class Recorder:
    """Records one run. The folder is written at once and for good; the others are told, and may fail without harm.

    Args:
        folder: where the files go.
        plan: the run's public numbers.
        run_id: unique in the ledger.
        ledger_url: where the run store is, asked for when the first round begins: it is then known.
        trackers: who else is told, by name.
        resume_from: the last finished round of a run that goes on; None: a new run.
    """

    def __init__(
        self,
        folder: Path,
        plan: RunPlan,
        run_id: str,
        *,
        ledger_url: Callable[[], str],
        trackers: Mapping[str, Tracker] | None = None,
        resume_from: int | None = None,
    ) -> None:
        self.folder = folder
        self._write = RunWriter(folder, plan, resume_from)
        self._facts = facts_of(plan, run_id, folder)
        self._ledger_url = ledger_url
        self._resumed = resume_from is not None
        self._store: StoreFeed | None = None
        self._trackers = Feed(trackers or {})
        self._trackers.begin(self._facts, folder)

    def __call__(self, record: RoundResult) -> None:
        """Write a finished round, and tell everybody."""
        store = self._opened_store()  # of a run that goes on, it takes in the folder's rounds: those before this one
        self._write(record)
        if not self._trackers.empty:  # else the store's thread finds the point, and training does not wait for it
            self._trackers.record(record.point)
        store.add(record)

    def on_phase(self, phase: Phase) -> None:
        """Tell what the run is about to do."""
        self._opened_store().enter(phase)

    def finish(self, arrays: ArrayRecord | None, status: RunStatus) -> None:
        """Write the model, draw what there is, and let everybody finish."""
        try:
            if arrays is not None:
                save_file({name: array.numpy() for name, array in arrays.items()}, self.folder / MODEL)
            history = read_history(self.folder) if (self.folder / START).exists() else None
            if history and history.rounds:
                save_png(run_figure(history.series()), self.folder / FIGURE)
                write_report(history, self.folder / REPORT)
        finally:
            self._write.close()
            self._trackers.end(status)
            if self._store:
                self._store.end(status)

    def _opened_store(self) -> StoreFeed:
        if self._store is None:
            history = read_history(self.folder) if self._resumed else None
            earlier = (history.start, *history.rounds) if history else ()
            self._store = StoreFeed(self._ledger_url(), self._facts, earlier)
        return self._store


def facts_of(plan: RunPlan, run_id: str, folder: Path) -> RunFacts:
    """What does not change during a run."""
    return RunFacts(
        run_id=run_id,
        name=folder.absolute().name,
        settings=plan.config.public(),
        noise_multiplier=plan.noise_multiplier,
        relation=plan.relation,
        metric=plan.task.metric,
    )
