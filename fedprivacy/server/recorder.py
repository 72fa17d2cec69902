"""Turns a run into what people look at: files, the run store that pages read, trackers."""

from __future__ import annotations

import json
import logging
import shlex
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr.app import ArrayRecord
from safetensors.numpy import save

from fedprivacy._support.durable import write_durably
from fedprivacy._support.imports import MissingExtraError, needing_extras
from fedprivacy.flower import RoundFailedError, TooFewClientsError, WorkerError
from fedprivacy.flower.server.federated_run import PrivateResult
from fedprivacy.ledger import LedgerError, database_file
from fedprivacy.questions.standardise import STANDARDISE, Standardise
from fedprivacy.runs.callbacks import CallbackError
from fedprivacy.runs.placement import HERE, Placement
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import (
    CLIENT_MODELS,
    ERROR,
    MODEL,
    REPORT,
    RunFolderError,
    RunWriter,
    begun_only,
    read_history,
    writing,
)
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.records.store import RunRecording, url_in
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.tasks import TaskError
from fedprivacy.tasks.loader import OBJECT
from fedprivacy.trackers import Feed, Tracker
from fedprivacy.values.runs import Phase, RoundResult, RunStatus
from fedprivacy.values.series import RunFacts

log = logging.getLogger("fedprivacy.server")
flower_log = logging.getLogger("flwr")

INTERVAL = 0.5
"""Seconds between two writes: rounds that come faster are written together, and the ledger is free in between."""

SHARE = 0.02
"""Maximum share of a core that writing may take; to keep it, rounds of very many clients are written together."""

HEARTBEAT = 10.0
"""Seconds after which a run that has nothing to say gives a sign of life."""

PATIENCE = 30.0
"""Seconds for which a run that has ended waits for what is not written yet."""


class Recorder:
    """Records one run. The folder is written at once and for good; all else may fail without harm.

    Args:
        folder: where the files go.
        plan: the run's public numbers.
        run_id: unique in the ledger.
        trackers: who else is told, by name.
        resume_from: the last finished round of a run that goes on; None: a new run.
    """

    def __init__(
        self,
        folder: Path,
        plan: TrainingPlan,
        run_id: str,
        *,
        trackers: Mapping[str, Tracker] | None = None,
        resume_from: int | None = None,
    ) -> None:
        self.folder = folder
        self._config = plan.config
        least, largest = plan.noise.bounds(plan.simulated_clients) or (0.0, 0.0)  # the store finds out as clients come
        self._write = RunWriter(folder, plan, resume_from, run_id)
        self._facts = RunFacts(
            run_id=run_id,
            name=folder.absolute().name,
            settings=plan.config.public(),
            noise_multiplier=least,
            relation=plan.relation,
            metric=plan.task.metric,
            largest_noise_multiplier=largest,
            unit=str(plan.unit),
        )
        history = None if resume_from is None else read_history(folder)
        self._earlier = (history.start, *history.rounds) if history else ()
        self._feeds: list[StoreFeed] = []
        self._trackers = Feed(trackers or {})
        self._trackers.begin(self._facts, folder)

    def __call__(self, record: RoundResult) -> None:
        """Write a finished round, and tell everybody."""
        self._write(record)
        if not self._trackers.empty:  # else the store's thread finds the point, and training does not wait for it
            self._trackers.record(record.point)
        for feed in self._feeds:
            feed.add(record)

    def on_open(self, ledger_url: str) -> None:
        """Begin the index for pages; beside a ledger elsewhere, too, for pages that know only the ledger."""
        file = database_file(ledger_url)
        own = file is not None and file.parent == self.folder.absolute()
        urls = [url_in(self.folder), *([] if own else [ledger_url])]
        self._feeds = [StoreFeed(url, self._facts, self._earlier) for url in urls]

    def on_phase(self, phase: Phase) -> None:
        """Tell what the run is about to do."""
        for feed in self._feeds:
            feed.add(phase)

    @contextmanager
    def recording(self, result: PrivateResult, *, drawn: bool = True) -> Iterator[None]:
        """Record the run that this surrounds to its end, and say how it ended and where the results are.

        What there is of a run that fails is kept, too, and its error says how to go on. Of one that Ctrl-C ends nothing
        is drawn: whoever presses it does not want to wait. `fedprivacy runs error` shows the error later.
        """
        status = RunStatus.FAILED
        (self.folder / ERROR).unlink(missing_ok=True)  # of a run that goes on
        try:
            try:
                yield
                status = RunStatus.STOPPED if result.stopped_because else RunStatus.FINISHED
            except KeyboardInterrupt:
                status, drawn = RunStatus.STOPPED, False
                raise
            except Exception:
                with suppress(OSError):  # a full disk is why the run fails
                    (self.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
                raise
            finally:
                self.finish(result, status, drawn=drawn)
        except (
            CallbackError,
            LedgerError,
            RoundFailedError,
            TaskError,
            TooFewClientsError,
            WorkerError,
            RunFolderError,
        ) as error:
            error.add_note(
                f"{how_to_go_on(self._config)}\n"
                f"In a deployment: start the run again with its own settings and resume = '{self.folder}'."
            )
            raise
        flower_log.info("Results are in %s.", self.folder.absolute())

    def finish(self, result: PrivateResult, status: RunStatus, *, drawn: bool = True) -> None:
        """Write the model, draw what there is if it shall be `drawn`, and let everybody finish.

        Raises:
            RunFolderError: the model cannot be written, of a run that did not fail already.
        """
        try:
            if result.arrays is not None:
                failed = status is RunStatus.FAILED
                self._keep(MODEL, model_file(result.arrays, result.standardise), failed=failed)
                if personal := result.personal():
                    self._keep(CLIENT_MODELS, save({c: p.numpy() for c, p in personal.items()}), failed=failed)
            if drawn:
                self._draw()
        finally:
            self._trackers.end(status)
            for feed in self._feeds:
                feed.end(status)
            self._write.close()

    def _keep(self, name: str, model: bytes, *, failed: bool) -> None:
        try:
            with writing(self.folder):
                write_durably(self.folder / name, model)
        except RunFolderError as error:
            if not failed:
                raise
            log.warning("The model is not saved: %s", error)  # the first error says why the run failed

    def _draw(self) -> None:
        """Figure and report; a run whose rounds are kept does not fail because it cannot be drawn."""
        if begun_only(self.folder):
            return
        try:
            draw(read_history(self.folder), self.folder)
        except (MissingExtraError, RunFolderError) as error:
            with suppress(OSError):
                (self.folder / REPORT).unlink()  # that of fewer rounds, from before the run went on
            where = shlex.quote(str(self.folder))
            log.warning("The report is not drawn: %s Later: fedprivacy report %s", error, where)


def draw(history: RunHistory, folder: Path) -> None:
    """Draw figure and report as `report.draw` does, which is imported now: a node has no figures.

    Raises:
        MissingExtraError: the extra `figures` is not installed.
        RunFolderError: see there.
    """
    with needing_extras():
        from fedprivacy.runs.records import report

    report.draw(history, folder)


def model_file(arrays: ArrayRecord, standardise: Standardise | None) -> bytes:
    """A model as it is kept: its parameters, and in the metadata what its inputs become first, if anything."""
    metadata = None if standardise is None else {STANDARDISE: json.dumps(standardise.numbers)}
    return save({name: array.numpy() for name, array in arrays.items()}, metadata)


def how_to_go_on(config: RunConfig, placement: Placement = HERE) -> str:
    """Say what to type when a run has ended before its last round. A task that is an object must be given again."""
    again = f"fedprivacy simulate --resume {shlex.quote(config.out)}{placement.typed}"
    if config.task.startswith(OBJECT):
        task = config.task.removeprefix(OBJECT)
        again = f"fp.simulate({task}(), resume={config.out!r}{placement.keywords})"
    return f"To go on after the last finished round: {again}"


class StoreFeed:
    """Writes a run into the store from a thread of its own, so that training does not wait for a database.

    What cannot be written is tried again, and never stops a run. One that goes on has earlier rounds, with round 0.
    """

    def __init__(self, url: str, facts: RunFacts, earlier: Iterable[RoundResult] = ()) -> None:
        self._url = url
        self._facts = facts
        self._news: deque[tuple[RoundResult | Phase, float]] = deque((record, time.time()) for record in earlier)
        self._status: RunStatus | None = None
        self._ended, self._something = threading.Event(), threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="run store", daemon=True)
        self._something.set()
        self._thread.start()

    def add(self, news: RoundResult | Phase) -> None:
        """Take a finished round, or what the run is about to do. Returns at once."""
        self._news.append((news, time.time()))
        self._something.set()

    def end(self, status: RunStatus) -> None:
        """Take how the run ended, and wait until it is written."""
        self._status = status
        self._ended.set()
        self._something.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive() or self._failing:
            log.warning("The run store lacks the end of this run; the run's folder has all of it.")

    def _work(self) -> None:
        recording: RunRecording | None = None
        while True:
            self._something.wait(HEARTBEAT)
            self._something.clear()
            ending, began = self._status, time.thread_time()
            try:
                if recording is None:
                    recording, began = RunRecording(self._url, self._facts), time.thread_time()
                self._write(recording, ending)
                self._failing = False
            except Exception as error:  # whatever it is: a run does not end because nobody can watch it
                if not self._failing:
                    log.warning("The run store cannot be written, and is tried again; the run goes on. %s", error)
                self._failing = True
            if ending is not None:
                break
            self._ended.wait(min(max(INTERVAL, (time.thread_time() - began) / SHARE), HEARTBEAT))
        if recording:
            recording.close()

    def _write(self, recording: RunRecording, ending: RunStatus | None) -> None:
        while self._news:
            news, at = self._news.popleft()
            if isinstance(news, Phase):
                recording.enter(news)
            else:
                recording.add(news, at)
        if ending is not None:
            recording.end(ending)
        recording.flush()
