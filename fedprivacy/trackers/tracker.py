"""Protocol of trackers, the public numbers that all get under the same names, and the feed that informs them.

No path of a file or a database is among the numbers. No run waits for a tracker, or fails with it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Thread
from typing import Protocol

from fedprivacy.values.series import RoundPoint, RunFacts
from fedprivacy.values.wording import NO_PRIVACY, count_text

PROJECT = "fedprivacy"
"""Name of the collection of runs: an experiment of MLflow, a project of W&B."""

_CHOICES = ("clipping", "device", "filter", "optimizer")


class Tracker(Protocol):
    """Receiver of a run and its finished rounds, in order; may fail without harm."""

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """Note a run that begins or resumes, and whose files are in `folder`."""

    def record(self, point: RoundPoint) -> None:
        """Note a finished round."""

    def end(self, status: str) -> None:
        """Note the end of the run: "finished", "stopped" before its last round, or "failed" with an error."""


def scalars(point: RoundPoint, *, private: bool = True) -> dict[str, float]:
    """Return a round's numbers; not all are finite. A run that is not private, a baseline, has no epsilon."""
    return {
        **{f"metrics/{name}": float(value) for name, value in point.metrics.items()},
        **({f"epsilon/{name}": value for name, value in asdict(point.epsilons).items()} if private else {}),
        "clients/enrolled": point.clients,
        "clients/participants": point.participants,
        "clients/failed": point.failed,
        "clients/exhausted": point.exhausted,
        "clients/unreconciled": point.unreconciled,
    }


def settings(facts: RunFacts) -> dict[str, float | str]:
    """Return the settings that are numbers or name a choice, with the noise multiplier that was used.

    Other texts are not passed on: they are paths and addresses, and the address of a ledger may hold a password. A name
    that includes a file is passed on without the file.
    """
    numbers = {key: value for key, value in facts.settings.items() if isinstance(value, int | float)}
    choices = {key: facts.settings[key] for key in _CHOICES if facts.settings.get(key)}
    names = {"task": facts.task, "strategy": facts.strategy}
    if not facts.private:
        return numbers | choices | names | dict.fromkeys(("epsilon", "noise-multiplier"), NO_PRIVACY)
    same = 0.0 < facts.noise_multiplier >= facts.largest_noise_multiplier
    noise = facts.noise_multiplier if same else facts.noise_text
    return numbers | choices | names | {"epsilon": facts.budget, "noise-multiplier": noise}


def guarantee(facts: RunFacts) -> dict[str, float | str]:
    """Describe the epsilons: observer, accountant, neighbouring relation, unit of privacy, delta."""
    if not facts.private:
        return {"guarantee": NO_PRIVACY}
    neighbours = {"relation": facts.relation, "unit": facts.unit}
    return {"view": "server", "accountant": "PLD", **neighbours, "delta": facts.delta}


log = logging.getLogger("fedprivacy.server")

PATIENCE = 30.0
"""Seconds that the end of a run waits for its trackers."""

MOST_WAITING = 1_000
"""Maximum number of rounds that wait for a slow tracker; of more, the oldest are dropped."""


class Feed:
    """Feed that informs trackers about a run, each from a thread of its own.

    A tracker that raises is left out from then on. Neither this nor a tracker that hangs affects the others, the run,
    or the end of the interpreter: it is logged, and the run's own files are complete.

    Args:
        trackers: trackers by name.
        most_waiting: maximum number of rounds that wait for each tracker.
    """

    def __init__(self, trackers: Mapping[str, Tracker], most_waiting: int = MOST_WAITING) -> None:
        self._trackers, self._most_waiting = trackers, most_waiting
        self._lines: list[_Line] = []

    @property
    def empty(self) -> bool:
        """True if there is no tracker."""
        return not self._trackers

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """Announce a run that begins or resumes, and whose files are in `folder`."""
        self._lines = [_Line(*each, self._most_waiting, facts, folder) for each in self._trackers.items()]

    def record(self, point: RoundPoint) -> None:
        """Announce a finished round. Returns at once."""
        for line in self._lines:
            line.record(point)

    def end(self, status: str, patience: float = PATIENCE) -> None:
        """Announce the end of the run, and wait for the trackers; after `patience` seconds, log those that lag."""
        for line in self._lines:
            line.end(status)
        deadline = time.monotonic() + patience
        for line in self._lines:
            line.wait(deadline)


class _Line:
    """The rounds that wait for one tracker, and the thread that passes them on."""

    def __init__(self, name: str, tracker: Tracker, most_waiting: int, facts: RunFacts, folder: Path) -> None:
        self._name, self._tracker = name, tracker
        self._waiting: deque[RoundPoint] = deque(maxlen=most_waiting)
        self._taking, self._dropped = False, 0
        self._status: str | None = None
        self._changed = Condition()
        self._thread = Thread(target=self._tell, args=(facts, folder), name=f"tracker {name}", daemon=True)
        self._thread.start()

    def record(self, point: RoundPoint) -> None:
        if not self._thread.is_alive():
            return
        with self._changed:
            full = len(self._waiting) == self._waiting.maxlen
            self._dropped += full
            self._waiting.append(point)
            self._changed.notify()
        if full and self._dropped == 1:
            waiting = count_text(len(self._waiting), "round")
            log.warning("Tracker %s is slow: %s wait for it. From now on, the oldest are dropped.", self._name, waiting)

    def end(self, status: str) -> None:
        with self._changed:
            self._status = status
            self._changed.notify()

    def wait(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            left = count_text(len(self._waiting) + self._taking, "round")
        if self._thread.is_alive():
            log.warning("Tracker %s does not answer: it lacks %s, and the end of the run.", self._name, left)
        if self._dropped:
            dropped = count_text(self._dropped, "round")
            log.warning("Tracker %s was too slow: %s were dropped before it.", self._name, dropped)

    def _tell(self, facts: RunFacts, folder: Path) -> None:
        """Pass everything to the tracker, in order."""
        try:
            self._tracker.begin(facts, folder)
            while isinstance(told := self._next(), RoundPoint):
                self._tracker.record(told)
            self._tracker.end(told)
        except BaseException as error:  # a library's SystemExit would end this thread silently
            kind = type(error).__name__
            log.warning("Tracker %s is left out of the rest of the run: %s: %s", self._name, kind, error)

    def _next(self) -> RoundPoint | str:
        """Return the round that has waited longest, as soon as there is one; the run's status when it is over."""
        with self._changed:
            self._taking = False
            while not self._waiting:
                if self._status is not None:
                    return self._status
                self._changed.wait()
            self._taking = True
            return self._waiting.popleft()
