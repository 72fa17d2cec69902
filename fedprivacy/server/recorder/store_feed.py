"""Writes a run into the store from a thread of its own, so that training does not wait for a database."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from fedprivacy.runs.store import RunRecording
from fedprivacy.values.rounds import Phase, RoundResult
from fedprivacy.values.runs import RunStatus
from fedprivacy.values.series import RunFacts

log = logging.getLogger("fedprivacy.server")

INTERVAL = 0.5
"""Seconds between two writes: rounds that come faster are written together, and the ledger is free in between."""

SHARE = 0.02
"""Of a core, the most that writing may take: the rounds of very many clients are written together, too."""

HEARTBEAT = 10.0
"""Seconds after which a run that has nothing to say gives a sign of life."""

PATIENCE = 30.0
"""Seconds for which a run that has ended waits for what is not written yet."""


class StoreFeed:
    """Takes finished rounds and returns at once; what cannot be written is tried again, and never stops a run.

    Args:
        url: of the ledger.
        facts: of the run.
        earlier: rounds that a run which goes on has behind it, with round 0.
    """

    def __init__(self, url: str, facts: RunFacts, earlier: Iterable[RoundResult] = ()) -> None:
        self._url = url
        self._facts = facts
        self._news: deque[tuple[RoundResult | Phase, float]] = deque((record, time.time()) for record in earlier)
        self._status: RunStatus | None = None
        self._ended = threading.Event()
        self._something = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="run store", daemon=True)
        self._something.set()
        self._thread.start()

    def add(self, record: RoundResult) -> None:
        """Take a finished round."""
        self._news.append((record, time.time()))
        self._something.set()

    def enter(self, phase: Phase) -> None:
        """Take what the run is about to do."""
        self._news.append((phase, time.time()))
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
                self._complain(error)
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

    def _complain(self, error: Exception) -> None:
        if not self._failing:
            log.warning("The run store cannot be written, and is tried again; the run goes on. %s", error)
        self._failing = True
