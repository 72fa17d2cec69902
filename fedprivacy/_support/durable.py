"""Durable files: bytes are on the disk when a function returns, and a crash leaves files whole.

Room on the disk can be taken before there is anything to write, so that a write cannot fail for want of it.

Without waiting for the disk, a power failure may leave an empty file under the right name, or the old one, or no name.
"""

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

UNNAMED = ".new"
"""Suffix of a file that has not been given its own name yet; one that a crash left behind can be deleted."""

PRIVATE = 0o600
"""Mode of a file that its owner alone may read."""

_USUAL = 0o666

NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""Error codes of a disk, a quota or a limit on the length of files that leaves no room."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error codes of a file system without hard links; vfat and exFAT raise the first."""


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write all of `data` at an offset, in bytes, of an open file, and wait until the disk has it.

    Raises:
        OSError: there is no room, or the disk fails; a part may have been written.
    """
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], at + written)
    os.fsync(fd)


def write_unnamed(file: Path, data: bytes, mode: int = _USUAL) -> Path:
    """Write `data` into the folder where `file` shall be, and wait for the disk.

    Args:
        file: the name that the file which is returned shall get, by a link or by being renamed.
        data: its content.
        mode: its permissions, before the process's mask.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    unnamed = file.with_name(f"{_unnamed_prefix(file)}{secrets.token_hex(8)}{UNNAMED}")
    fd = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        write_at(fd, data, 0)
    except BaseException:  # Ctrl-C, too
        unnamed.unlink()
        raise
    finally:
        os.close(fd)
    return unnamed


def _unnamed_prefix(file: Path) -> str:
    return f".{file.name}."


def unnamed_of(file: Path) -> list[Path]:
    """Find files that `write_unnamed` wrote for a name and that do not have it (yet)."""
    prefix = _unnamed_prefix(file)
    return [other for other in file.parent.iterdir() if other.name.startswith(prefix) and other.suffix == UNNAMED]


def name_once(unnamed: Path, file: Path) -> None:
    """Give a file its name unless another has it. Unlike a rename, a link replaces nothing.

    Raises:
        OSError: the file cannot be named so; on a file system without hard links, what to do. Nothing is left behind.
    """
    try:
        with suppress(FileExistsError):
            os.link(unnamed, file)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise OSError(
                error.errno, "its file system has no hard links; name a file on one that has, such as ext4", str(file)
            ) from error
        raise
    finally:
        unnamed.unlink(missing_ok=True)  # a process that met the file under two names has deleted it


def name_durably(unnamed: Path, file: Path) -> None:
    """Give a file its name, in place of what had it before, and wait until the disk has it."""
    unnamed.replace(file)
    sync_folder(file.parent)


def write_durably(file: Path, data: bytes) -> None:
    """Write a file, whole or not at all, in place of what was there, and wait for the disk."""
    name_durably(write_unnamed(file, data), file)


def append_durably(file: Path, data: bytes) -> None:
    """Append to a file and wait until the disk has it.

    Raises:
        OSError: it cannot be written; the file is as long as before.
    """
    fd = os.open(file, os.O_CREAT | os.O_WRONLY, _USUAL)
    try:
        end = os.fstat(fd).st_size
        try:
            write_at(fd, data, end)
        except OSError:
            os.ftruncate(fd, end)
            raise
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`: until then, a crash may take back a file's creation.

    Raises:
        OSError: the folder cannot be opened, or its disk fails.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
    path, fd = _open_locked(folder)
    try:
        allocate(fd, size)
        yield Room(path, fd)
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _open_locked(folder: Path) -> tuple[Path, int]:
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
