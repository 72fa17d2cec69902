"""One account has one file, whatever names the file goes by."""

import os
import shutil
import struct
import zlib

import pytest

from fedprivacy.guard import Guard
from fedprivacy.guard.errors import LogDamagedError, SecondNameError
from fedprivacy.guard.frames import empty_log
from fedprivacy.guard.log import create
from tests.guard.account import BUDGET, EVENT, key, sealed_folder


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
        with pytest.raises(SecondNameError, match=r"find -samefile .*delete them, and back it up by copying"):
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


def test_two_accounts_in_one_folder_have_nothing_to_do_with_each_other(file):
    one, other = Guard(file, BUDGET), Guard(file.with_name("other.log"), BUDGET)
    for guard in (one, other):
        guard.charge(key(1), EVENT, 1)
        guard.seal(key(1), b"update")
    assert len({sealed_folder(file), sealed_folder(file.with_name("other.log"))}) == 2
    file.unlink()
    assert Guard(file.with_name("other.log"), BUDGET).sealed(key(1)) == b"update"
    with pytest.raises(LogDamagedError, match=r"it is gone, but .*sealed holds updates"):
        Guard(file, BUDGET)
    assert not file.exists()


def test_a_file_that_another_account_is_put_into_is_refused(file, tmp_path):
    """The same inode with the bytes of a new log: without an entry it forgets nothing that it ever held."""
    guard = Guard(file, BUDGET)
    assert guard.history() == {}
    create(tmp_path / "new.log")
    file.write_bytes((tmp_path / "new.log").read_bytes())
    with pytest.raises(LogDamagedError):
        guard.charge(key(1), EVENT, 1)


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


def test_another_log_of_the_first_version_takes_no_folder_with_it(file, tmp_path):
    """A mistake, that is noticed, must not make an older copy believed afterwards."""
    guard = Guard(file, BUDGET)
    guard.charge(key(1), EVENT, 1)
    of_the_first_version(old := tmp_path / "old.log", file.read_bytes())
    guard = Guard(old, BUDGET)
    guard.seal(key(1), b"update")
    older = old.read_bytes()
    guard.charge(key(2), EVENT, 1)
    guard.seal(key(2), b"the next")
    sealed_folder(old).rename(tmp_path / "old.log.sealed")
    another = Guard(tmp_path / "another.log", BUDGET)
    another.charge(key(1, run_id="another"), EVENT, 1)
    of_the_first_version(old, (tmp_path / "another.log").read_bytes())
    with pytest.raises(LogDamagedError, match="never charged"):
        Guard(old, BUDGET)
    old.write_bytes(older)
    with pytest.raises(LogDamagedError, match="never charged"):
        Guard(old, BUDGET)


def of_the_first_version(file, data):
    """Write a log as an earlier version did: without an identity in its header."""
    head = struct.pack(">8sI", b"FPODOM\r\n", 1)
    file.write_bytes((head + struct.pack(">I", zlib.crc32(head))).ljust(4096, b"\0") + data[4096:])


def test_a_log_of_the_first_version_goes_on_and_has_the_identity_of_its_first_entry(file, tmp_path):
    Guard(file, BUDGET).charge(key(1), EVENT, 1)
    old = tmp_path / "old.log"
    of_the_first_version(old, file.read_bytes())
    first = old.read_bytes()
    again = Guard(old, BUDGET)
    assert again.history() == {EVENT: 1}
    again.seal(key(1), b"update")
    sealed_folder(old).rename(tmp_path / "old.log.sealed")  # as an earlier version called it
    assert Guard(old, BUDGET).sealed(key(1)) == b"update" and not (tmp_path / "old.log.sealed").exists()
    again.charge(key(2), EVENT, 1)
    again.seal(key(2), b"the next")
    (tmp_path / "copy.log").write_bytes(first)
    of_the_first_version(tmp_path / "empty.log", empty_log())
    newest = old.read_bytes()
    for name, data in (("copy.log", first), ("old.log", first), ("old.log", (tmp_path / "empty.log").read_bytes())):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(LogDamagedError, match="never charged"):
            Guard(tmp_path / name, BUDGET)
    old.write_bytes(newest)
    assert Guard(old, BUDGET).history() == {EVENT: 2}
