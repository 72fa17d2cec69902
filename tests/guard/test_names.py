"""One account has one file, whatever names the file goes by."""

import os
import shutil
import struct
import zlib

import pytest

from fedprivacy.guard import Guard
from fedprivacy.guard.errors import LogDamagedError, LogError
from fedprivacy.guard.log import create
from tests.guard.account import BUDGET, EVENT, key


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("linked", ["file", "folder", "link of a link"])
def test_an_older_copy_is_refused_by_whoever_comes_by_a_symbolic_link(file, elsewhere, linked):
    """Restored in place: the same file, the older bytes. What the first name has sealed bears witness to the second."""
    by_link = elsewhere / file.name
    if linked == "folder":
        elsewhere.rmdir()
        elsewhere.symlink_to(file.parent, target_is_directory=True)
    elif linked == "link of a link":
        (elsewhere / "between").symlink_to(file)
        by_link.symlink_to(elsewhere / "between")
    else:
        by_link.symlink_to(file)
    guard = Guard(by_link, BUDGET)
    guard.charge(key(1), EVENT, 40)
    guard.seal(key(1), b"the first update")
    backup = file.read_bytes()
    again = Guard(file, BUDGET)
    again.charge(key(2), EVENT, 40)
    again.seal(key(2), b"the second update")
    with file.open("r+b") as opened:
        opened.truncate(0)
        opened.write(backup)
    for name in (file, by_link):
        with pytest.raises(LogDamagedError, match="never charged"):
            Guard(name, BUDGET)


def test_a_file_with_a_second_name_is_refused_until_the_name_is_gone(file, elsewhere):
    guard = Guard(file, BUDGET)
    guard.charge(key(1), EVENT, 1)
    os.link(file, elsewhere / "other.log")
    for name in (file, elsewhere / "other.log"):
        with pytest.raises(
            LogError, match=r"more than one name.*find -samefile .*delete them, and back it up by copying"
        ):
            Guard(name, BUDGET).charge(key(2), EVENT, 1)
    (elsewhere / "other.log").unlink()
    guard.charge(key(2), EVENT, 1)
    assert guard.history() == {EVENT: 2}


def test_what_a_crash_left_between_two_names_is_cleared_away(file):
    """`create` links a written file to its name, and dies before it deletes the first one."""
    create(file)
    os.link(file, file.with_name(f".{file.name}.0123456789abcdef.new"))
    Guard(file, BUDGET).charge(key(1), EVENT, 1)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("name", ["guard.log.bak", "other.log", "a.log"])
def test_a_copy_under_another_name_finds_what_was_sealed_since(file, name):
    guard = Guard(file, BUDGET)
    guard.charge(key(1), EVENT, 1)
    guard.seal(key(1), b"first")
    shutil.copy(file, copy := file.with_name(name))
    assert Guard(copy, BUDGET).history() == {EVENT: 1}  # so far it says the truth
    guard.charge(key(2), EVENT, 1)
    guard.seal(key(2), b"second")
    with pytest.raises(LogDamagedError, match="never charged"):
        Guard(copy, BUDGET)


@pytest.mark.parametrize("moved_in", ["another account's", "a new one"])
def test_another_log_in_the_file_s_place_is_refused_beside_what_was_sealed_there(file, tmp_path, moved_in):
    for name in (file, tmp_path / "elsewhere.log"):
        guard = Guard(name, BUDGET)
        guard.charge(key(1, run_id=name.name), EVENT, 1)
        guard.seal(key(1, run_id=name.name), b"update")
    own = file.read_bytes()
    if moved_in == "a new one":
        create(tmp_path / "new.log")
    other = tmp_path / ("new.log" if moved_in == "a new one" else "elsewhere.log")
    file.write_bytes(other.read_bytes())
    with pytest.raises(LogDamagedError, match="never charged"):
        Guard(file, BUDGET)
    file.write_bytes(own)
    assert Guard(file, BUDGET).history() == {EVENT: 1}


def of_the_first_version(file, data):
    """Write a log as an earlier version did: without an identity in its header."""
    head = struct.pack(">8sI", b"FPODOM\r\n", 1)
    file.write_bytes((head + struct.pack(">I", zlib.crc32(head))).ljust(4096, b"\0") + data[4096:])


@pytest.mark.parametrize("entries", [0, 1])
def test_a_log_of_the_first_version_is_refused_and_never_taken_for_an_empty_one(file, tmp_path, entries):
    guard = Guard(file, BUDGET)
    for round in range(entries):
        guard.charge(key(round), EVENT, 1)
    of_the_first_version(old := tmp_path / "old.log", file.read_bytes())
    before = old.read_bytes()
    with pytest.raises(LogError, match=rf"{old} is a guard of an older form"):
        Guard(old, BUDGET).charge(key(9), EVENT, 1)
    assert old.read_bytes() == before
    (sealed := tmp_path / "old.log.sealed").mkdir()  # as the first version called it
    (sealed / "0.update").write_bytes(b"update")
    old.unlink()
    with pytest.raises(LogDamagedError, match=r"it is gone, but .*old.log.sealed holds updates"):
        Guard(old, BUDGET)
    assert not old.exists()


@pytest.mark.parametrize("name", ["odometer.db", "odometer.log"])
def test_no_account_begins_or_goes_on_beside_a_guard_of_an_older_form(file, name):
    guard = Guard(file, BUDGET)
    guard.charge(key(1), EVENT, 1)
    (old := file.with_name(name)).write_bytes(b"SQLite format 3")
    for begun in (file, file.with_name("other.log")):
        with pytest.raises(LogError, match=rf"{old} is a guard of an older form.*begin another account"):
            Guard(begun, BUDGET)
    assert not file.with_name("other.log").exists() and old.read_bytes() == b"SQLite format 3"
    old.unlink()
    assert Guard(file, BUDGET).history() == {EVENT: 1}
