"""A run's user-level account: charged, on the disk, before a round's noisy average is handed on.

It is kept in the run's folder and not in the ledger. A charge in the ledger belongs to one dataset, and every balance,
certificate and proof there adds up what is charged to a dataset; a round of the federation belongs to no dataset, and
must never enter such a sum. So it counts the rounds of one run. Anybody who trains again with the same clients and
publishes both models adds the rounds up: `fedprivacy.accounting.views.UserLevelAccount` takes several runs.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedprivacy._support.durable import append_durably, write_durably
from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.runs.plans.noise import UserLevelNoise
from fedprivacy.runs.records.folder import writing
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.spent import UserLevelSpent

BOOK = "user-level.jsonl"
"""The account, in the run's folder: one line for each release, written before it."""


class UserLevelBook:
    """The user-level account of one run, over all its lives.

    Formal guarantee: when a round's average is handed on, its event is on the disk. The events of a run are all the
    same, so how many of them the budget allows is known before the first; the run ends when the next is one too many.
    What the models tell of any client is therefore (epsilon, delta)-differentially private at the budget, under
    `fedprivacy.accounting.views.View.USER_LEVEL.conditions`.

    Args:
        folder: the run's.
        run_id: the run's name; lines of others in the same folder are left alone.
        noise: what is added to each release, and the budget.
        repeatable: whether the run's noise comes from a seed: a round that was released before it was stopped is
            released again with the same bits, and charged once. Else it is another release, and another charge.

    Raises:
        RunFolderError: the account cannot be written.
    """

    def __init__(self, folder: Path, run_id: str, noise: UserLevelNoise, *, repeatable: bool) -> None:
        self._file, self._run_id, self._noise, self._repeatable = folder / BOOK, run_id, noise, repeatable
        self._account, self._charged = UserLevelAccount(), set[tuple[int, int]]()
        self._most = noise.rounds_left
        self._released: set[Attempt] = set()
        content = self._file.read_bytes() if self._file.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]  # half a line, which a crash has left, was followed by no release
        if whole != content:
            with writing(self._file.parent):
                write_durably(self._file, whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            if entry["run_id"] == run_id:
                self._account.record(entry["sampling_rate"], entry["noise_multiplier"])
                self._charged.add((entry["round"], entry["attempt"]))

    def allows(self, attempt: Attempt) -> bool:
        """Tell whether the budget allows the release with which an attempt at a round would end."""
        return self._is_paid(attempt) or self._account.rounds < self._most

    def charge(self, attempt: Attempt) -> None:
        """Charge a release that is about to be made; on the disk when this returns.

        Raises:
            ValueError: this process has charged it: the same noise would be added to another sum. Or the budget does
                not allow it.
            RunFolderError: it cannot be written, so nothing may be released.
        """
        if attempt in self._released:
            raise ValueError(f"round {attempt.round} was released already, by its attempt {attempt.attempt}.")
        if not self.allows(attempt):
            raise ValueError(f"round {attempt.round} does not fit the user-level budget.")
        if not self._is_paid(attempt):
            event = self._noise.mechanism.event
            entry = {
                "run_id": self._run_id,
                "round": attempt.round,
                "attempt": attempt.attempt,
                "sampling_rate": event.sampling_rate,
                "noise_multiplier": event.noise_multiplier,
            }
            write = append_durably if self._file.exists() else write_durably  # which keeps the file's name, too
            with writing(self._file.parent):
                write(self._file, (json.dumps(entry) + "\n").encode())
            self._account.record(event.sampling_rate, event.noise_multiplier)
            self._charged.add((attempt.round, attempt.attempt))
        self._released.add(attempt)

    def spent(self, clipping_norm: float) -> UserLevelSpent:
        """The state of the account; `clipping_norm` is the current one of adaptive clipping."""
        event, budget = self._noise.mechanism.event, self._noise.budget
        return UserLevelSpent(
            epsilon=self._account.epsilon(budget.delta).value,
            delta=budget.delta,
            budget_epsilon=budget.epsilon,
            rounds=self._account.rounds,
            sampling_rate=event.sampling_rate,
            noise_multiplier=event.noise_multiplier,
            clipping_norm=clipping_norm,
        )

    def _is_paid(self, attempt: Attempt) -> bool:
        """Tell whether the very same release was charged before the run was stopped."""
        return self._repeatable and (attempt.round, attempt.attempt) in self._charged
