"""A durable append-only file of entries, used by any number of processes in turn.

It knows nothing of privacy: an entry is bytes. `fedprivacy.guard.frames` defines the layout of the file.

Formal guarantee: once `append` has returned, neither a crash of process or machine nor any single fault of the file
makes the entry disappear: it is read, or `LogDamagedError` is raised. A crash before that leaves it counted or not,
never half. This holds for disks that keep what they report as written. The content of a file that is restored from a
backup cannot reveal that it is old; the updates beside it can (`fedprivacy.guard.seals`).
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fedprivacy._support.durable import NO_ROOM, PRIVATE, name_once, sync_folder, unnamed_of, write_at, write_unnamed
from fedprivacy._support.failpoints import reach
from fedprivacy.guard import frames
from fedprivacy.guard.errors import LogDamagedError, LogError, LogWriteError
from fedprivacy.guard.frames import ENTRIES_AT, FRAMING, MOST_PAYLOAD, SLOT_AT, Believed, Frame, Repair

PATIENCE = 30.0
"""Seconds that a process waits for another's transaction, which takes milliseconds, or as long as a seal."""

_POLL = 0.02  # seconds between two attempts to lock
_PIECE = 2**16  # bytes read at a time, so few that they stay in a processor's cache


def create(file: Path) -> None:
    """Create an empty log, whole or not at all; an existing one is left as it is.

    Raises:
        LogWriteError: the file cannot be created, for example because its folder does not exist.
    """
    try:
        if not file.exists():
            name_once(write_unnamed(file, frames.empty_log(), PRIVATE), file)
        sync_folder(file.parent)  # the process that created the file may have died before its name was on the disk
    except OSError as error:
        raise LogWriteError(file, error, undone=True) from error


def identity_of(file: Path) -> str:
    """Read the identity of a log from its header.

    Raises:
        LogError: the file is not a log that this program knows.
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        return frames.identity_in(file, opened.read(ENTRIES_AT))


class EntryLog:
    """One log that `create` made; a process waits up to `patience` seconds for another's transaction.

    Threads may share it: a lock excludes them as it does processes.

    Attributes:
        file: path of the log, with links resolved.
        identity: identity of the log as of the last transaction; see `fedprivacy.guard.frames`.
        entries: all entries up to the last transaction, in order.
    """

    def __init__(self, file: Path, patience: float = PATIENCE) -> None:
        self.file = file.resolve()
        self._patience = patience
        self.identity = ""
        self.entries: list[bytes] = []
        self._encoded = bytearray()  # their frames, as they are in the file

    def damage_error(self, index: int, wrong: str) -> LogDamagedError:
        """Make the error for an entry, counted from 0, that is whole but invalid."""
        offset = ENTRIES_AT + sum(FRAMING + len(payload) for payload in self.entries[:index])
        return LogDamagedError(self.file, offset, wrong)

    @contextmanager
    def transaction(self) -> Iterator[Callable[[bytes], None]]:
        """Lock the file, repair it after a crash, read all of it, and yield a function that appends an entry.

        `append(payload)` returns when the entry is on the disk. It raises ValueError if the payload is longer than
        `MOST_PAYLOAD` bytes, and `LogWriteError` if the disk refuses; then the entry does not count, unless the error
        states that it may.

        Raises:
            LogError: another process kept the lock for longer than `patience`; or the file is of an older form, or has
                another name, too.
            LogDamagedError: the file may have lost entries.
            LogWriteError: the file cannot be opened, locked, read or repaired.
        """
        with self._open() as fd:
            try:
                self._lock(fd)
                self._read(fd)
            except OSError as error:
                raise LogWriteError(self.file, error, undone=True) from error
            yield partial(self._append, fd)

    @contextmanager
    def _open(self) -> Iterator[int]:
        try:
            fd = os.open(self.file, os.O_RDWR)
        except OSError as error:
            raise LogWriteError(self.file, error, undone=True) from error
        try:
            yield fd
        finally:
            # Unlock explicitly: a child forked meanwhile has the file open, too, and would keep the lock.
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LogError(
                        f"{self.file} has been locked by another process for {self._patience:g} s. Nothing more was "
                        "charged. Let one client at a time work on a shard, or end the process that holds the file."
                    ) from None
                time.sleep(_POLL)
            else:
                return

    def _read(self, fd: int) -> None:
        """Read everything again, because another process may have appended, and the disk may have decayed.

        Entries that are still there, byte for byte, are not decoded again, which would take most of the time.
        """
        opened = os.fstat(fd)
        if not stat.S_ISREG(opened.st_mode):
            raise LogDamagedError(self.file, 0, "it is no regular file")
        if not os.path.samestat(opened, self.file.stat()):
            raise LogDamagedError(self.file, 0, "another file was put in its place while this process waited for it")
        if _links(self.file, fd) > 1:
            # Sealed updates lie beside only one of the names.
            raise LogError(
                f"{self.file} has more than one name (hard links), and an older copy could be put back under one of "
                f"them unnoticed. Find the others with 'find -samefile {self.file}', delete them, and back it up by "
                "copying."
            )
        head = os.pread(fd, ENTRIES_AT, 0)
        identity = frames.identity_in(self.file, head)
        last, known = (self._last, len(self._encoded)) if self._is_unchanged(fd) else (frames.NO_ENTRY, 0)
        data = head + _bytes_from(fd, ENTRIES_AT + known)
        found, before = frames.trustworthy_content(self.file, data, last, known), self.entries[last.sequence :]
        payloads = [frame.payload for frame in found.frames]
        if payloads[: len(before)] != before or self.identity not in ("", identity):
            raise LogDamagedError(
                self.file, found.end, f"it no longer holds the {len(self.entries)} entries that it held a while ago"
            )
        _repair(fd, found, found.frames[-1] if found.frames else self._last)
        for frame in found.frames[len(before) :]:
            self._add(frame)
        self.identity = identity

    def _is_unchanged(self, fd: int) -> bool:
        """Return whether the file holds the entries of the last transaction, byte for byte."""
        pieces = ((at, self._encoded[at : at + _PIECE]) for at in range(0, len(self._encoded), _PIECE))
        return all(os.pread(fd, len(piece), ENTRIES_AT + at) == piece for at, piece in pieces)

    def _add(self, frame: Frame) -> None:
        self.entries.append(frame.payload)
        self._encoded += frames.encode_frame(frame)

    @property
    def _end(self) -> int:
        return ENTRIES_AT + len(self._encoded)

    @property
    def _last(self) -> Frame:
        return Frame(len(self.entries), self.entries[-1]) if self.entries else frames.NO_ENTRY

    def _append(self, fd: int, payload: bytes) -> None:
        if len(payload) > MOST_PAYLOAD:
            raise ValueError(f"the entry has {len(payload)} bytes; an entry of {self.file} has at most {MOST_PAYLOAD}.")
        frame = Frame(len(self.entries) + 1, payload)
        try:
            reach("guard.before-slot")
            write_at(fd, frames.slot_block(frame), SLOT_AT)
            reach("guard.slot-written")
            write_at(fd, frames.encode_frame(frame), self._end)
        except OSError as error:
            # After any other error, no later success proves anything of what is on the disk.
            undone = self._undo(fd) and error.errno in NO_ROOM
            raise LogWriteError(self.file, error, undone=undone) from error
        reach("guard.appended")
        self._add(frame)

    def _undo(self, fd: int) -> bool:
        """Restore the file to its state before an entry that could not be appended; return whether that worked.

        The tail is removed first: as long as the slot holds the new entry, a crash in between makes it count.
        """
        try:
            os.ftruncate(fd, self._end)
            os.fsync(fd)
            write_at(fd, frames.slot_block(self._last), SLOT_AT)
        except OSError:
            return False
        return True


def _links(file: Path, fd: int) -> int:
    """Count the names of an open file, after deleting those that `create` has left behind."""
    if os.fstat(fd).st_nlink > 1:
        for unnamed in unnamed_of(file):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), unnamed.stat()):  # not a file that another process is about to name
                    unnamed.unlink()
    return os.fstat(fd).st_nlink


def _bytes_from(fd: int, at: int) -> bytes:
    data = bytearray()
    while piece := os.pread(fd, _PIECE, at + len(data)):
        data += piece
    return bytes(data)


def _repair(fd: int, found: Believed, last: Frame) -> None:
    """Finish an operation that a crash interrupted. Each step can be interrupted in turn, and repeated."""
    match found.repair:
        case Repair.NOTHING:
            pass
        case Repair.RENEW_SLOT:
            write_at(fd, frames.slot_block(last), SLOT_AT)
        case Repair.CUT_TAIL:
            os.ftruncate(fd, found.end)
            os.fsync(fd)
        case Repair.APPEND_SLOT:
            os.ftruncate(fd, found.end)
            write_at(fd, frames.encode_frame(last), found.end)
