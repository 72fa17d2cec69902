"""Bytes that are on the disk when a function returns."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp

UNNAMED = ".new"
"""How a file's name ends that has not got its own name yet; one that a crash left behind can be deleted."""


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write all of `data` and wait until the disk has it.

    Args:
        fd: a file that is open for writing.
        data: any bytes.
        at: offset in the file, in bytes.

    Raises:
        OSError: there is no room, or the disk fails; a part may have been written.
    """
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], at + written)
    os.fsync(fd)


def write_unnamed(file: Path, data: bytes) -> Path:
    """Write `data` into the folder where `file` shall be, readable by its owner alone, and wait for the disk.

    Returns:
        The new file, to be linked or renamed to `file`.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    fd, name = mkstemp(prefix=f".{file.name}.", suffix=UNNAMED, dir=file.parent)
    unnamed = Path(name)
    try:
        write_at(fd, data, 0)
    except OSError:
        unnamed.unlink()
        raise
    finally:
        os.close(fd)
    return unnamed


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
