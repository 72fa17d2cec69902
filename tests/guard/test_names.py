"""One account has one file, whatever names the file goes by, and one filter from its first step to its last."""

import os
import shutil
import struct
import zlib

import pytest

from fedprivacy.commands.app import app
from fedprivacy.guard import Guard
from fedprivacy.guard.errors import LogDamagedError, LogError
from fedprivacy.guard.log import create
from fedprivacy.values.events import NeighbouringRelation
from tests.guard.account import BUDGET, EVENT, key, sealed_folder
from tests.terminal import CliRunner


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


def of_the_first_version(file, data):
    """Write a log as an earlier version did: without an identity in its header."""
    head = struct.pack(">8sI", b"FPODOM\r\n", 1)
    file.write_bytes((head + struct.pack(">I", zlib.crc32(head))).ljust(4096, b"\0") + data[4096:])


def test_a_log_of_the_first_version_is_refused_and_never_taken_for_an_empty_one(file, tmp_path):
    Guard(file, BUDGET).charge(key(1), EVENT, 1)
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


# --- another filter begins another account ---------------------------------------------------------------------------

ADAPTIVE = "adaptive"


@pytest.fixture
def charged(file):
    """An account that the usual filter keeps."""
    guard = Guard(file, BUDGET)
    guard.charge(key(1), EVENT, 3)
    guard.seal(key(1), b"update")
    return guard


def test_another_filter_in_the_middle_is_refused_and_nothing_is_charged(file, charged):
    changed = Guard(file, BUDGET, ADAPTIVE)
    with pytest.raises(LogError, match=r"filter = 'fixed-then-adaptive' again.*fedprivacy guard renew"):
        changed.charge(key(2), EVENT, 1)
    with pytest.raises(LogError, match="has been kept by 'fixed-then-adaptive' so far"):
        changed.check(EVENT.relation)
    assert (
        changed.history() == {EVENT: 3} and changed.sealed_update(key(1)) == b"update"
    )  # what was paid for is still sent
    Guard(file, BUDGET, "fixed-then-adaptive").charge(key(2), EVENT, 1)


def test_by_the_owner_s_command_another_account_begins_and_the_first_is_kept(file, charged):
    assert CliRunner().invoke(app, ["guard", "renew", str(file)], input="n\n").exit_code == 1
    assert Guard(file, BUDGET).history() == {EVENT: 3}
    done = CliRunner().invoke(app, ["guard", "renew", str(file)], input="y\n")
    assert done.exit_code == 0, done.output
    assert "epsilon 3" in done.output and "by the sum of both" in done.output
    aside = file.with_name(f"{file.name}.1")
    assert not file.exists() and Guard(aside, BUDGET).sealed_update(key(1)) == b"update"
    renewed = Guard(file, BUDGET, ADAPTIVE)
    renewed.charge(key(1), EVENT, 2)
    renewed.seal(key(1), b"another")
    assert renewed.history() == {EVENT: 2} and Guard(aside, BUDGET).history() == {EVENT: 3}
    assert sealed_folder(file) != sealed_folder(aside)
    assert CliRunner().invoke(app, ["guard", "renew", str(file), "--yes"]).exit_code == 0
    assert Guard(file.with_name(f"{file.name}.2"), BUDGET).history() == {EVENT: 2}


def test_an_account_without_a_charge_needs_no_other(file):
    Guard(file, BUDGET)
    done = CliRunner().invoke(app, ["guard", "renew", str(file), "--yes"])
    assert done.exit_code == 2 and "promised nothing yet" in done.output


def test_an_account_that_has_only_promised_a_relation_can_be_put_aside(file):
    Guard(file, BUDGET).promise(NeighbouringRelation.ZERO_OUT)
    private = Guard(file, BUDGET)
    with pytest.raises(LogError, match=r"promises zero-out.*fedprivacy guard renew"):
        private.check(NeighbouringRelation.ADD_OR_REMOVE_ONE)
    done = CliRunner().invoke(app, ["guard", "renew", str(file), "--yes"])
    assert done.exit_code == 0 and "zero-out relation" in done.output and "stays known" in " ".join(done.output.split())
    Guard(file, BUDGET).promise(NeighbouringRelation.ADD_OR_REMOVE_ONE)
