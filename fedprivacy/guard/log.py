"""A durable append-only file of entries, used by any number of processes in turn.

It knows nothing of privacy: an entry is bytes. `fedprivacy.guard.frames` defines the layout of the file.

Formal guarantee: once `append` has returned, neither a crash of process or machine nor any single fault of the file
makes the entry disappear: it is read, or `LogDamagedError` is raised. A crash before that leaves it counted or not,
never half. This holds for disks that keep what they report as written. The content of a file that is restored from a
backup cannot reveal that it is old; the updates beside it can (`fedprivacy.guard.seals`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fedprivacy._support.durable import PRIVATE, name_once, sync_folder, unnamed_of, write_at, write_unnamed
from fedprivacy._support.failpoints import reach
from fedprivacy.guard import frames
from fedprivacy.guard.errors import LogBusyError, LogDamagedError, LogWriteError, SecondNameError
from fedprivacy.guard.frames import ENTRIES_AT, FRAMING, MOST_PAYLOAD, SLOT_AT, Believed, Frame, Repair

PATIENCE = 30.0
"""Seconds that a process waits for another's transaction, which takes milliseconds, or as long as a seal."""

_POLL = 0.02  # seconds between two attempts to lock
_PIECE = 2**20  # bytes read at a time
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""Errors after which the disk is known to be unchanged. After any other, no later success proves anything."""


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
        LogDamagedError: the file is not a log that this program knows.
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        return frames.identity_in(file, opened.read(frames.IDENTITY_WITHIN))


class EntryLog:
    """One log that `create` made; a process waits up to `patience` seconds for another's transaction.

    Threads may share it: a lock excludes them as it does processes.

    Attributes:
        file: path of the log, with links resolved.
        identity: identity of the log as of the last transaction; see `fedprivacy.guard.frames`.
    """

    def __init__(self, file: Path, patience: float = PATIENCE) -> None:
        self.file = file.resolve()
        self._patience = patience
        self.identity = ""
        self._frames: list[Frame] = []
        self._end = ENTRIES_AT

    @property
    def entries(self) -> list[bytes]:
        """All entries up to the last transaction, in order."""
        return [frame.payload for frame in self._frames]

    def damaged(self, index: int, wrong: str) -> LogDamagedError:
        """Make the error for an entry, counted from 0, that is whole but invalid."""
        offset = ENTRIES_AT + sum(FRAMING + len(frame.payload) for frame in self._frames[:index])
        return LogDamagedError(self.file, offset, wrong)

    @contextmanager
    def transaction(self) -> Iterator[Callable[[bytes], None]]:
        """Lock the file, repair it after a crash, read all entries, and yield a function that appends one.

        `append(payload)` returns when the entry is on the disk. It raises ValueError if the payload is longer than
        `MOST_PAYLOAD` bytes, and `LogWriteError` if the disk refuses; then the entry does not count, unless the error
        states that it may.

        Raises:
            LogBusyError: another process kept the lock for longer than `patience`.
            LogDamagedError: the file may have lost entries.
            SecondNameError: the file has another name, too.
            LogWriteError: the file cannot be opened, locked, read or repaired.
        """
        with self._opened() as fd:
            try:
                self._lock(fd)
                self._read(fd)
            except OSError as error:
                raise LogWriteError(self.file, error, undone=True) from error
            yield partial(self._append, fd)

    @contextmanager
    def _opened(self) -> Iterator[int]:
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
                    raise LogBusyError(self.file, self._patience) from None
                time.sleep(_POLL)
            else:
                return

    def _read(self, fd: int) -> None:
        """Read everything again, because another process may have appended, and the disk may have decayed."""
        opened = os.fstat(fd)
        if not stat.S_ISREG(opened.st_mode):
            raise LogDamagedError(self.file, 0, "it is no regular file")
        if not os.path.samestat(opened, self.file.stat()):
            raise LogDamagedError(self.file, 0, "another file was put in its place while this process waited for it")
        if _links(self.file, fd) > 1:
            raise SecondNameError(self.file)
        found = frames.believed(self.file, _all_bytes(fd))
        if found.frames[: len(self._frames)] != self._frames or self.identity not in ("", found.identity):
            raise LogDamagedError(
                self.file, found.end, f"it no longer holds the {len(self._frames)} entries that it held a while ago"
            )
        self._end = _repaired(fd, found)
        self._frames, self.identity = found.frames, found.identity or self.identity

    def _append(self, fd: int, payload: bytes) -> None:
        if len(payload) > MOST_PAYLOAD:
            raise ValueError(f"the entry has {len(payload)} bytes; an entry of {self.file} has at most {MOST_PAYLOAD}.")
        frame = Frame(len(self._frames) + 1, payload)
        try:
            reach("guard.before-slot")
            write_at(fd, frames.slot_block(frame), SLOT_AT)
            reach("guard.slot-written")
            write_at(fd, frames.encoded(frame), self._end)
        except OSError as error:
            undone = self._undo(fd) and error.errno in _NO_ROOM
            raise LogWriteError(self.file, error, undone=undone) from error
        reach("guard.appended")
        self._frames.append(frame)
        self._end += FRAMING + len(payload)

    def _undo(self, fd: int) -> bool:
        """Restore the file to its state before an entry that could not be appended; return whether that worked.

        The tail is removed first: as long as the slot holds the new entry, a crash in between makes it count.
        """
        try:
            os.ftruncate(fd, self._end)
            os.fsync(fd)
            write_at(fd, frames.slot_block(_last(self._frames)), SLOT_AT)
        except OSError:
            return False
        return True


def _last(entries: list[Frame]) -> Frame:
    return entries[-1] if entries else frames.NO_ENTRY


def _links(file: Path, fd: int) -> int:
    """Count the names of an open file, after deleting those that `create` has left behind."""
    if os.fstat(fd).st_nlink > 1:
        for unnamed in unnamed_of(file):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), unnamed.stat()):  # not a file that another process is about to name
                    unnamed.unlink()
    return os.fstat(fd).st_nlink


def _all_bytes(fd: int) -> bytes:
    data = bytearray()
    while piece := os.pread(fd, _PIECE, len(data)):
        data += piece
    return bytes(data)


def _repaired(fd: int, found: Believed) -> int:
    """Finish an operation that a crash interrupted. Each step can be interrupted in turn, and repeated.

    Returns:
        The offset behind the last entry.
    """
    last = _last(found.frames)
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
            write_at(fd, frames.encoded(last), found.end)
            return found.end + FRAMING + len(last.payload)
    return found.end
