"""Durable files: bytes are on the disk when a function returns, and a crash leaves files whole.

Without waiting for the disk, a power failure may leave an empty file under the right name, or the old one, or no name.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
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
