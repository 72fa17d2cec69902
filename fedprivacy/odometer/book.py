"""What the records of a log add up to, and the log file that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedprivacy.events import Event
from fedprivacy.odometer.log import RecordLog
from fedprivacy.odometer.records import (
    ChargeKey,
    ChargeRecord,
    CorrectionRecord,
    Record,
    SealedRecord,
    Terms,
    decoded,
    encoded,
)

Write = Callable[[Record], None]


@dataclass(slots=True)
class Book:
    """The sum of all records.

    Attributes:
        entries: charges and corrections, in order.
        charges: the charges by what they are for, in order.
        sealed: the sealed updates by what they were charged as, in order.
        run_keys: the fingerprint of the key that opened a run, by the run's name.
        history: how often each event counts, over all runs, corrections included.
    """

    entries: list[ChargeRecord | CorrectionRecord] = field(default_factory=list)
    charges: dict[ChargeKey, ChargeRecord] = field(default_factory=dict)
    sealed: dict[ChargeKey, SealedRecord] = field(default_factory=dict)
    run_keys: dict[str, str] = field(default_factory=dict)
    history: dict[Event, int] = field(default_factory=dict)

    @property
    def terms(self) -> Terms | None:
        """What the data owner allowed at last; None before anything is charged."""
        return self.entries[-1].terms if self.entries else None

    def add(self, record: Record) -> None:
        """Take one more record into account."""
        if isinstance(record, SealedRecord):
            self.sealed[record.key] = record
            return
        self.entries.append(record)
        self.history[record.event] = self.history.get(record.event, 0) + record.steps
        if isinstance(record, ChargeRecord):
            self.charges[record.key] = record
            self.run_keys.setdefault(record.key.run_id, record.run_key)


class BookFile:
    """A book and the file that it is kept in.

    Args:
        file: a log that `fedprivacy.odometer.log.create` made.
    """

    def __init__(self, file: Path) -> None:
        self.book = Book()
        self._log = RecordLog(file)
        self._added = 0

    @contextmanager
    def transaction(self) -> Iterator[Write]:
        """Lock the file, bring `book` up to date, and yield what writes one record and adds it.

        Raises:
            LogError: see `RecordLog.transaction`.
        """
        with self._log.transaction() as append:

            def write(record: Record) -> None:
                append(encoded(record))
                self._catch_up()

            self._catch_up()
            yield write

    def _catch_up(self) -> None:
        for payload in self._log.records[self._added :]:
            try:
                record = decoded(payload)
            except ValueError as error:
                raise self._log.damaged(self._added, str(error)) from error
            self.book.add(record)
            self._added += 1
