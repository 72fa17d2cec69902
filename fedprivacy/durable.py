"""Files that a crash leaves whole: what is moved into place has reached the disk before, and so has its name after.

Without the two flushes a power failure may leave an empty file under the right name, or the old one.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(file: Path, content: bytes) -> None:
    """Write a file, and return when its content is on the disk."""
    _write(file, "wb", content)


def append_durably(file: Path, content: bytes) -> None:
    """Append to a file, and return when it is on the disk."""
    _write(file, "ab", content)


def move_durably(written: Path, place: Path) -> None:
    """Move a file to another name in its folder, where it replaces what was there, whole or not at all."""
    written.replace(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(file: Path, mode: str, content: bytes) -> None:
    with file.open(mode) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
