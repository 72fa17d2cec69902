"""Room on a disk that is taken before there is anything to write, so that a write cannot fail for want of it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedprivacy._support.durable import PRIVATE, UNNAMED, write_at, write_unnamed

_KEEP_LENGTH = 1  # FALLOC_FL_KEEP_SIZE of Linux
_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS)
"""Error codes of a file system that does not allocate ahead, such as NFS before version 4.2."""


def allocate(fd: int, size: int, at: int = 0) -> None:
    """Allocate the blocks for `size` bytes of an open file, from an offset on; its length stays as it is.

    Until the process ends, these bytes can be written however full the disk gets. On a file system that cannot allocate
    ahead, only compare with its free bytes.

    Raises:
        OSError: there is no room (a code of `NO_ROOM`), or the disk fails.
    """
    longest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if longest != resource.RLIM_INFINITY and at + size > longest:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    code = _fallocate(fd, size, at)
    if code in _CANNOT_ALLOCATE:
        code = 0 if free_bytes(fd) >= size else errno.ENOSPC
    if code:
        raise OSError(code, os.strerror(code))


def _fallocate(fd: int, size: int, at: int) -> int:
    """Call Linux's fallocate, which `os.posix_fallocate` cannot tell to keep the length; return 0 or an error code."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)  # musl has the second alone
    if call is None:
        return errno.ENOSYS
    while call(fd, _KEEP_LENGTH, ctypes.c_int64(at), ctypes.c_int64(size)) != 0:
        if ctypes.get_errno() != errno.EINTR:
            return ctypes.get_errno()
    return 0


def free_bytes(place: int | Path) -> int:
    """Return how many bytes of the disk of an open file, or of a path, this account may still write."""
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


def size_text(size: int) -> str:
    """Format a number of bytes for people.

    >>> size_text(70_000), size_text(402_000_000)
    ('0.07 MB', '402 MB')
    """
    return f"{size / 1e6:,.3g} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


@dataclass(frozen=True, slots=True)
class Room:
    """An unnamed file whose blocks are allocated before there is anything to write; see `room_in`."""

    path: Path
    fd: int


def write_into(room: Room | None, file: Path, data: bytes) -> Path:
    """Write data durably as its owner's alone, into the room that is held or else anew; return the unnamed file.

    Raises:
        OSError: no room is held, or too little, and there is no more; or the disk fails.
    """
    if room is None:
        return write_unnamed(file, data, PRIVATE)
    write_at(room.fd, data, 0)
    os.ftruncate(room.fd, len(data))  # frees what is left of the room
    return room.path


@contextmanager
def room_in(folder: Path, size: int) -> Iterator[Room]:
    """Hold room for a file of `size` bytes in a folder, until it is named or the context ends.

    A process that is killed meanwhile leaves the unnamed file behind, and its next one here deletes it. No other
    process does so before: the file is locked as long as it is open.

    Raises:
        OSError: there is no room (a code of `NO_ROOM`), or the folder cannot be written.
    """
    delete_unnamed(folder)
    path, fd = _locked(folder)
    try:
        allocate(fd, size)
        yield Room(path, fd)
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _locked(folder: Path) -> tuple[Path, int]:
    """Make an unnamed file and lock it."""
    while True:
        path = folder / f".{secrets.token_hex(8)}{UNNAMED}"
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return path, fd
        os.close(fd)  # another process was faster and deleted it


def delete_unnamed(folder: Path) -> None:
    """Delete the files in a folder that never got their names, unless a process holds them as `room_in` does."""
    for path in folder.glob(f".*{UNNAMED}"):
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
