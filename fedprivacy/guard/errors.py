"""Errors of a guard, caused by a server, by its owner, or by the disk."""

from __future__ import annotations

from pathlib import Path

from fedprivacy._support.durable import size_text
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event


class GuardError(Exception):
    """The guard refuses; a client that meets it must not train, or must not send."""


class BudgetExhaustedError(GuardError):
    """The data owner's own budget does not allow the grant, or the step of a training."""


class QuestionsExhaustedError(BudgetExhaustedError):
    """The budget that the client's owner allows for questions does not allow the grant; training may go on."""

    def __init__(self, file: Path, budget: PrivacyBudget, event: Event, left: int, asked: int) -> None:
        super().__init__(
            f"question-epsilon is {budget.epsilon} at delta {budget.delta}: with what {file} counts as questions, it "
            f"allows {left} more of {event}, and the grant asks for {asked}. Ask with more noise, or read the answers "
            "that were given again, for nothing; a larger question-epsilon is the data owner's decision alone, and "
            "weakens what was promised."
        )


class AlreadyChargedError(GuardError):
    """A replayed grant: its run, round and attempt were charged before."""


class InvalidGrantError(GuardError, ValueError):
    """A grant that cannot be recorded: a name or a count is out of range, or its run has another server's key."""


class SealError(GuardError, ValueError):
    """An update that may not be sealed: it was not charged, or another one was sealed for the attempt."""


class LogError(GuardError):
    """The guard's file cannot be used, or not for what is asked: the account has promised something else."""


class LogWriteError(LogError):
    """The file cannot be opened or written; unless `undone`, the entry may count all the same."""

    def __init__(self, file: Path, reason: OSError, *, undone: bool) -> None:
        self.undone = undone
        charged = (
            "Nothing more was recorded or charged."
            if undone
            else "What was to be recorded may count all the same, once: no less can be proven of this disk."
        )
        super().__init__(
            f"{file} cannot be written: {reason.strerror or reason}. {charged} Make room on its disk, or give this "
            "process the right to read and write it, and try again."
        )


class NoRoomError(LogError):
    """The disk has no room for a round's entries and its sealed update."""

    def __init__(self, file: Path, needed: int, free: int) -> None:
        super().__init__(
            f"guard is '{file}', and a round needs {size_text(needed)} on its disk for its entries and the update "
            f"that is sealed; {size_text(free)} are free. Nothing was charged. Make room on the disk of {file.parent}, "
            "or raise this account's limit on it or on the length of a file, and run again."
        )


def old_guard_error(old: Path) -> LogError:
    """Return the error for a guard of an older form: a new one in its place, or beside it, would start at zero."""
    return LogError(
        f"{old} is a guard of an older form, which this version of fedprivacy does not read: what it counted "
        "stands, so keep it, move it and its folder of sealed updates elsewhere, and begin another account, "
        "whose epsilon and delta add to those of that one."
    )


class LogDamagedError(LogError):
    """The file may have lost entries, so that nothing may be spent on it."""

    def __init__(self, file: Path, offset: int, wrong: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {offset}: {wrong}. Keep the file and never delete it: what it counted would be "
            "forgotten. The server's ledger holds the other book (`fedprivacy ledger export`); how to reconcile the "
            "two is in docs/how-to/ledger.md."
        )
