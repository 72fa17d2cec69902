"""Sealed updates: their owner's alone, on the disk before the log says so, in room that is held before a charge."""

import ctypes
import errno
import os
import resource
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedprivacy._support.durable import UNNAMED
from fedprivacy._support.failpoints import arm
from fedprivacy.guard import Guard, NoRoomError
from tests.guard.account import BUDGET, EVENT, key, kinds, sealed_folder
from tests.processes import KILLED, in_child

KB = 1024
UPDATE = os.urandom(300 * KB)


def unnamed(file):
    return [path for path in sealed_folder(file).iterdir() if path.suffix == UNNAMED]


def on_disk(*files):
    """Number of bytes of the blocks that files have."""
    return sum(512 * file.stat().st_blocks for file in files)


def limit_files_to(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_what_does_not_fit_is_refused_before_the_charge_with_figures_and_remedy(file, guard):
    guard.charge(key(), EVENT, 2)
    before = file.read_bytes()

    def act():
        limit_files_to(200 * KB)
        with pytest.raises(NoRoomError, match=r"guard\.log', and a round needs 0\.373 MB .* are free\.") as raised:
            guard.room(len(UPDATE)).__enter__()
        assert "Nothing was charged. Make room on the disk of" in str(raised.value)

    assert in_child(act) == 0
    assert file.read_bytes() == before and not unnamed(file)


def test_the_blocks_are_there_before_the_charge_and_no_more_than_the_update_s_after_it(file, guard):
    with guard.room(10 * len(UPDATE)) as room:
        (held,) = unnamed(file)
        assert held.stat().st_size == 0 and on_disk(held) >= 10 * len(UPDATE)
        assert on_disk(file) >= file.stat().st_size + 15 * 4096  # for the entries
        guard.charge(key(), EVENT, 2)
        guard.seal(key(), UPDATE, room)
    (sealed,) = sealed_folder(file).iterdir()
    assert on_disk(sealed) < 2 * len(UPDATE)
    assert Guard(file, BUDGET).sealed_update(key()) == UPDATE
    assert kinds(file) == ["charge", "sealed"]


def test_another_round_of_the_same_guard_takes_no_room_away(file, guard):
    other = Guard(file, BUDGET)
    with guard.room(len(UPDATE)) as room:
        guard.charge(key(), EVENT, 2)
        with other.room(KB) as its:
            other.charge(key(2), EVENT, 2)
            other.seal(key(2), b"another", its)
        guard.seal(key(), UPDATE, room)
    assert [other.sealed_update(key(round)) for round in (1, 2)] == [UPDATE, b"another"]
    assert not unnamed(file)


@pytest.mark.parametrize("point", ["client.seal-written", "guard.appended"])
def test_room_that_a_killed_process_leaves_is_given_back_by_the_next_one(file, point):
    def act():
        guard = Guard(file, BUDGET)
        with guard.room(len(UPDATE)) as room:
            arm(point)
            guard.charge(key(), EVENT, 2)
            guard.seal(key(), UPDATE, room)

    assert in_child(act) == KILLED
    assert len(unnamed(file)) == 1
    guard = Guard(file, BUDGET)
    with guard.room(KB):
        assert [left.stat().st_size for left in unnamed(file)] == [0]
    assert not unnamed(file) and guard.history() == {EVENT: 2}


@pytest.mark.parametrize("free", [0, 10**9])
def test_a_file_system_that_cannot_allocate_ahead_is_asked_what_is_free(file, guard, monkeypatch, free):
    def refuse(*_):
        ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(fallocate=refuse))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    if not free:
        with pytest.raises(NoRoomError, match="0 MB are free"):
            guard.room(len(UPDATE)).__enter__()
        return
    with guard.room(len(UPDATE)) as room:
        guard.charge(key(), EVENT, 2)
        guard.seal(key(), UPDATE, room)
    assert guard.sealed_update(key()) == UPDATE


def test_nobody_but_its_owner_can_look_into_the_folder(file, guard):
    guard.charge(key(), EVENT, 2)
    before = os.umask(0)
    try:
        guard.seal(key(), b"update")
    finally:
        os.umask(before)
    assert stat.S_IMODE(sealed_folder(file).stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in sealed_folder(file).iterdir()} == {0o600}


def test_update_name_and_folder_are_on_the_disk_before_the_log_says_that_it_is_sealed(file, guard, monkeypatch):
    """Otherwise a power failure could take back what has left, and with it the sign that it had."""
    guard.charge(key(), EVENT, 2)
    synced, fsync = [], os.fsync
    where = Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((where / str(fd)).readlink()) or fsync(fd))
    guard.seal(key(), b"update")
    names = [path.name if path.is_file() else path for path in synced]
    log = [place for place, name in enumerate(names) if name == "guard.log"]
    assert names.index(file.parent) < log[0]  # the folder's own name
    assert max(place for place, name in enumerate(names) if name == sealed_folder(file)) < log[0]  # the update's name
    assert len(names) == len(log) + 3  # and the update, under its first name
