"""Files that are written over others: a fault at any moment leaves the old one or the new one, whole, and no third."""

import ast
import errno
import os
import re
import stat
from pathlib import Path

import pytest

import fedprivacy
from fedprivacy._support.durable import PRIVATE, append_durably, write_durably, write_unnamed
from fedprivacy._support.signing import SigningKeyError, server_key
from fedprivacy.guard import LogError
from fedprivacy.guard.log import create

OLD, NEW = b"old" * 50, b"new" * 80


class Disk:
    """A record of the disk's calls about some files; from one call on, it fails."""

    def __init__(self, monkeypatch, error=None, at=10**9, short=10**9):
        self.told, self.error, self.at, self.short = [], error, at, short
        self.write, self.sync = os.pwrite, os.fsync

        def replace(old, new, rename=os.replace):
            self.told_of("rename")
            rename(old, new)

        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(Path, "replace", replace)

    def told_of(self, what):
        self.told.append(what)
        if len(self.told) > self.at:
            raise self.error

    def pwrite(self, fd, data, at):
        if len(self.told) >= self.at:
            self.write(fd, data[: len(data) // 2], at)  # half of it is there
        self.told_of("write")
        return self.write(fd, data[: self.short], at)

    def fsync(self, fd):
        self.told_of("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync")
        self.sync(fd)


FAULTS = [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken"), KeyboardInterrupt()]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@pytest.mark.parametrize("at", range(4))
def test_a_file_that_is_written_over_is_the_old_or_the_new_one_whatever_fails_when(tmp_path, monkeypatch, fault, at):
    file = tmp_path / "file"
    file.write_bytes(OLD)
    with monkeypatch.context() as failing, pytest.raises(type(fault)):
        Disk(failing, fault, at)
        write_durably(file, NEW)
    assert file.read_bytes() == (NEW if at > 2 else OLD)
    if at < 2:  # it never had all of its bytes
        assert list(tmp_path.iterdir()) == [file]
    write_durably(file, OLD)
    assert file.read_bytes() == OLD


@pytest.mark.parametrize("fault", FAULTS[:2], ids=repr)
@pytest.mark.parametrize("at", range(2))
def test_a_file_that_is_appended_to_is_as_long_as_before_where_that_fails(tmp_path, monkeypatch, fault, at):
    file = tmp_path / "file"
    append_durably(file, OLD)
    with monkeypatch.context() as failing, pytest.raises(OSError, match=fault.strerror):
        Disk(failing, fault, at)
        append_durably(file, NEW)
    assert file.read_bytes() == OLD
    append_durably(file, NEW)
    assert file.read_bytes() == OLD + NEW


@pytest.mark.parametrize("write", [write_durably, append_durably])
def test_all_bytes_are_written_though_the_disk_takes_a_few_at_a_time_and_are_there_before_their_name(
    tmp_path, monkeypatch, write
):
    with monkeypatch.context() as slow:
        disk = Disk(slow, short=100)
        write(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_bytes() == NEW
    named = ["rename", "sync folder"] if write is write_durably else []
    assert disk.told == ["write", "write", "write", "sync", *named]


def test_a_secret_is_readable_by_its_owner_alone_from_its_first_byte_on(tmp_path, monkeypatch):
    modes, before = [], os.umask(0)
    try:
        disk = Disk(monkeypatch)
        monkeypatch.setattr(os, "pwrite", lambda fd, *data: modes.append(os.fstat(fd).st_mode) or disk.write(fd, *data))
        write_unnamed(tmp_path / "file", NEW, PRIVATE)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(mode) for mode in modes] == [PRIVATE]


@pytest.mark.parametrize(("make", "error"), [(create, LogError), (server_key, SigningKeyError)])
def test_a_file_system_without_hard_links_is_named_with_what_to_do_and_nothing_is_left_on_it(
    make, error, tmp_path, monkeypatch
):
    def vfat(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as mounted:
        mounted.setattr(os, "link", vfat)
        with pytest.raises(error, match="has no hard links; name a file on one that has, such as ext4"):
            make(tmp_path / "file")
    assert not list(tmp_path.iterdir())
    make(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


NEW_ALONE = {
    "_support.logs": "a log",
    "audit.host": "a folder of its own, which is deleted",
    "audit.findings_page": "a page that is made anew from findings",
    "commands.dossier": "a new folder",
    "commands.ledger": "a new file",
    "commands.risk_page": "a drawing",
    "deploy.app_folder": "a new folder",
    "deploy.backup": "a draft",
    "deploy.federation": "a folder of its own",
    "deploy.processes": "a pipe",
    "runs.records.comparison": "a page that is made anew from runs",
    "runs.records.grid": "a table that is made anew from runs",
    "server.recorder": "the text of an error",
}
"""Modules that write files in place, and why a fault there loses nothing: everybody else writes durably."""


def writes_in_place(text):
    if not re.search(r"write_text|write_bytes|open\(", text):
        return False
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [(getattr(call.func, "attr", getattr(call.func, "id", "")), call) for call in calls]
    return any(name in {"write_text", "write_bytes"} for name, _ in named) or any(
        isinstance(mode, ast.Constant) and str(mode.value)[:1] in {"w", "a"}
        for name, call in named
        if name in {"open", "fdopen"}
        for mode in (*call.args, *(keyword.value for keyword in call.keywords))
    )


def test_no_other_module_writes_a_file_in_place():
    """Catches: `write_bytes` over a checkpoint, a witness, a certificate. A crash would leave half of it."""
    root = Path(fedprivacy.__file__).parent
    files = {".".join(file.relative_to(root).with_suffix("").parts): file for file in root.rglob("*.py")}
    assert {name for name, file in files.items() if writes_in_place(file.read_text())} == NEW_ALONE.keys()
