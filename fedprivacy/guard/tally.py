"""What the entries of a log add up to, and the log file that holds them beside the updates that it paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from fedprivacy.guard import seals
from fedprivacy.guard.entries import (
    ChargeEntry,
    CorrectionEntry,
    Entry,
    SealedEntry,
    decoded,
    encoded,
)
from fedprivacy.guard.errors import LogWriteError
from fedprivacy.guard.log import EntryLog
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance
from fedprivacy.values.events import Event

Write = Callable[[Entry], None]


@dataclass(slots=True)
class Tally:
    """The sum of all entries.

    Attributes:
        entries: charges and corrections, in order.
        charges: the charges by what they are for, in order.
        sealed: the sealed updates by what was charged for them, in order.
        names: of the files that updates are sealed in, by what was charged for them.
        places: by the name of a file, the place of its charge among all charges: of every name that this log gives.
        run_keys: the fingerprint of the key that opened a run, by the run's name.
        history: how often each event counts, over all runs, corrections included.
    """

    entries: list[ChargeEntry | CorrectionEntry] = field(default_factory=list)
    charges: dict[Attempt, ChargeEntry] = field(default_factory=dict)
    sealed: dict[Attempt, SealedEntry] = field(default_factory=dict)
    names: dict[Attempt, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    run_keys: dict[str, str] = field(default_factory=dict)
    history: dict[Event, int] = field(default_factory=dict)
    _told: str = ""  # a hash of all entries so far, chained

    @property
    def allowance(self) -> Allowance | None:
        """What the data owner allowed at last; None before anything is charged."""
        return self.entries[-1].allowance if self.entries else None

    def add(self, entry: Entry, payload: bytes) -> None:
        """Take one more entry into account.

        Args:
            entry: what it says.
            payload: its bytes in the log.
        """
        self._told = sha256(self._told.encode() + payload).hexdigest()
        if isinstance(entry, SealedEntry):
            self.sealed[entry.attempt] = entry
            self.places.setdefault(entry.name, len(self.charges))  # earlier versions gave other names
            return
        self.entries.append(entry)
        self.history[entry.event] = self.history.get(entry.event, 0) + entry.steps
        if isinstance(entry, ChargeEntry):
            self.charges[entry.attempt] = entry
            self.names[entry.attempt] = name = seals.name_of(self._told)
            self.places[name] = len(self.charges)
            self.run_keys.setdefault(entry.attempt.run_id, entry.run_key)


class TallyFile:
    """A tally and the file that it is kept in.

    Args:
        file: a log that `fedprivacy.guard.log.create` made.

    Attributes:
        tally: what it says, up to the last transaction.
        folder: of the sealed updates.
    """

    def __init__(self, file: Path) -> None:
        self.tally = Tally()
        self.folder = seals.folder_of(file)
        self._log = EntryLog(file)
        self._added = 0

    @contextmanager
    def transaction(self) -> Iterator[Write]:
        """Lock the file, bring `tally` up to date, and yield what writes one entry and adds it.

        Raises:
            LogDamagedError: the folder holds an update that this log never charged, see `fedprivacy.guard.seals`.
            LogError: see `EntryLog.transaction`.
        """
        with self._log.transaction() as append:

            def write(entry: Entry) -> None:
                append(encoded(entry))
                self._catch_up()

            self._catch_up()
            self._check_updates()
            yield write

    def _check_updates(self) -> None:
        """What was charged later than this log knows has been forgotten, however whole the log is."""
        try:
            unknown = seals.names_in(self.folder).difference(self.tally.places)
        except OSError as error:
            raise LogWriteError(self.folder, error, undone=True) from error
        if unknown:
            raise self._log.damaged(
                self._added,
                f"it ends here, and {self.folder} holds an update that it never charged ({min(unknown)}). An older "
                "copy was put back: put back the newest one, if there is one",
            )

    def _catch_up(self) -> None:
        for payload in self._log.entries[self._added :]:
            try:
                entry = decoded(payload)
            except ValueError as error:
                raise self._log.damaged(self._added, str(error)) from error
            self.tally.add(entry, payload)
            self._added += 1
