"""A tally adds up what the entries of a log say."""

import errno
import os
from datetime import UTC, datetime, timedelta

import pytest

from fedprivacy.guard import Guard, LogWriteError
from tests.guard.account import BUDGET, EVENT, key


def test_entries_tell_one_time_in_every_time_zone(file, in_kathmandu):
    """A log is read where its host is not, and hosts move: a time without a zone is nobody's."""
    before = datetime.now(UTC).replace(microsecond=0)
    Guard(file, BUDGET).charge(key(1), EVENT, 1)
    (entry,) = Guard(file, BUDGET).charges()
    told = datetime.fromisoformat(entry.time)
    assert told.utcoffset() == timedelta(0) and before <= told <= datetime.now(UTC)


def test_a_tally_that_the_disk_does_not_give_back_is_not_taken_for_an_empty_one(file, monkeypatch):
    Guard(file, BUDGET).charge(key(1), EVENT, 1)

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", refuse)
        with pytest.raises(LogWriteError, match="Nothing more was recorded or charged") as raised:
            Guard(file, BUDGET).charge(key(2), EVENT, 1)
    assert raised.value.undone
    assert Guard(file, BUDGET).history() == {EVENT: 1}
