"""The folder of sealed updates: its owner's alone, and on the disk before the log says that anything is in it."""

import os
import stat
from pathlib import Path

import pytest

from fedprivacy.guard import Guard
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.05, 1.2)
KEY = Attempt("run", 1, 1)


@pytest.fixture
def guard(tmp_path):
    charged = Guard(tmp_path / "guard.log", PrivacyBudget(3.0, 1e-5))
    charged.charge(KEY, EVENT, 2)
    return charged


def folder(tmp_path):
    (only,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    return only


def test_nobody_but_its_owner_can_look_into_the_folder(tmp_path, guard):
    before = os.umask(0)
    try:
        guard.seal(KEY, b"update")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder(tmp_path).stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder(tmp_path).iterdir()} == {0o600}


def test_update_name_and_folder_are_on_the_disk_before_the_log_says_that_it_is_sealed(tmp_path, guard, monkeypatch):
    """Otherwise a power failure could take back what has left, and with it the sign that it had."""
    synced, fsync = [], os.fsync
    where = Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((where / str(fd)).readlink()) or fsync(fd))
    guard.seal(KEY, b"update")
    names = [path.name if path.is_file() else path for path in synced]
    log = [place for place, name in enumerate(names) if name == "guard.log"]
    assert names.index(tmp_path) < log[0]  # the folder's own name
    assert max(place for place, name in enumerate(names) if name == folder(tmp_path)) < log[0]  # the update's name
    assert len(names) == len(log) + 3  # and the update, under its first name
