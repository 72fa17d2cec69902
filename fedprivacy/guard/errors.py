"""Errors of a guard, caused by a server, by its owner, or by the disk."""

from __future__ import annotations

from pathlib import Path

from fedprivacy._support.room import size_text
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, NeighbouringRelation
from fedprivacy.values.unit import Unit


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


class ForeignGrantError(GuardError):
    """A grant of a run that was opened under another server's key."""


class InvalidGrantError(GuardError, ValueError):
    """A grant that cannot be recorded: a name or a count is out of range."""


class SealError(GuardError, ValueError):
    """An update that may not be sealed: it was not charged, or another one was sealed for the attempt."""


class LogError(GuardError):
    """The guard's file cannot be used."""


class LogBusyError(LogError):
    """Another process holds the file."""

    def __init__(self, file: Path, seconds: float) -> None:
        super().__init__(
            f"{file} has been locked by another process for {seconds:g} s. Nothing more was charged. Let one client at "
            "a time work on a shard, or end the process that holds the file."
        )


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


class SecondNameError(LogError):
    """The file has several names on its disk (hard links), but sealed updates lie beside only one of them."""

    def __init__(self, file: Path) -> None:
        super().__init__(
            f"{file} has more than one name (hard links), and an older copy could be put back under one of them "
            f"unnoticed. Find the others with 'find -samefile {file}', delete them, and back it up by copying."
        )


class OldGuardError(LogError):
    """A guard of an older form exists: a new one in its place, or beside it, would start at zero."""

    def __init__(self, old: Path) -> None:
        super().__init__(
            f"{old} is a guard of an older form, which this version of fedprivacy does not read: what it counted "
            "stands, so keep it, move it and its folder of sealed updates elsewhere, and begin another account, "
            "whose epsilon and delta add to those of that one."
        )


class FilterChangedError(LogError):
    """The node configuration names another filter than the one that has kept the account so far."""

    def __init__(self, file: Path, before: str, named: str) -> None:
        super().__init__(
            f"filter is '{named}', and {file} has been kept by '{before}' so far: changed in the middle, neither keeps "
            f"its promise. Write filter = '{before}' again; or begin another account, 'fedprivacy guard renew {file}', "
            "whose epsilon and delta add to those of this one."
        )


class RelationChangedError(LogError):
    """A request needs another neighbouring relation than the one that the account promises."""

    def __init__(self, file: Path, before: NeighbouringRelation, asked: NeighbouringRelation) -> None:
        super().__init__(
            f"{file} promises {before}, and what the task makes public is for {asked}: whether the number of records "
            "is public cannot change in the middle. Work on a task with the same shard_sizes_public; or begin another "
            f"account, 'fedprivacy guard renew {file}', whose epsilon and delta add to those of this one. A number "
            "that was public stays known: what both promise together is for the zero-out relation."
        )


class UnitChangedError(LogError):
    """A request has another unit of privacy than the one that the account promises."""

    def __init__(self, file: Path, before: Unit, asked: Unit) -> None:
        super().__init__(
            f"{file} promises the unit of privacy '{before}', and the task's is '{asked}': what one of the two has "
            "spent says nothing of the other, and does not add up. Work on a task with the same unit; or begin another "
            f"account, 'fedprivacy guard renew {file}': it is then promised beside this one, and for those whom both "
            "protect, their epsilon and delta add."
        )


class LogDamagedError(LogError):
    """The file may have lost entries, so that nothing may be spent on it."""

    def __init__(self, file: Path, offset: int, wrong: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {offset}: {wrong}. Keep the file and never delete it: what it counted would be "
            "forgotten. The server's ledger holds the other book (`fedprivacy ledger export`); how to reconcile the "
            "two is in docs/how-to/ledger.md."
        )
