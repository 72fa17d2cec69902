"""The folder of sealed updates: its owner's alone, and on the disk before the log says that anything is in it."""

import os
import stat
from pathlib import Path

import pytest

from fedprivacy.guard import Guard
from tests.guard.account import BUDGET, EVENT, key, sealed_folder


@pytest.fixture
def guard(file):
    charged = Guard(file, BUDGET)
    charged.charge(key(), EVENT, 2)
    return charged


def test_nobody_but_its_owner_can_look_into_the_folder(file, guard):
    before = os.umask(0)
    try:
        guard.seal(key(), b"update")
    finally:
        os.umask(before)
    assert stat.S_IMODE(sealed_folder(file).stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in sealed_folder(file).iterdir()} == {0o600}


def test_update_name_and_folder_are_on_the_disk_before_the_log_says_that_it_is_sealed(file, guard, monkeypatch):
    """Otherwise a power failure could take back what has left, and with it the sign that it had."""
    synced, fsync = [], os.fsync
    where = Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((where / str(fd)).readlink()) or fsync(fd))
    guard.seal(key(), b"update")
    names = [path.name if path.is_file() else path for path in synced]
    log = [place for place, name in enumerate(names) if name == "guard.log"]
    assert names.index(file.parent) < log[0]  # the folder's own name
    assert max(place for place, name in enumerate(names) if name == sealed_folder(file)) < log[0]  # the update's name
    assert len(names) == len(log) + 3  # and the update, under its first name
