"""The folder of sealed updates beside the log: updates that have left, or may have left, kept to be sent again.

An update is differentially private already and was charged; sending the same bytes twice reveals nothing more. Training
again would: so a client that died before sending sends the sealed update.

The folder also reveals an older copy of the log that was restored beside it. An update is charged, then written here,
then entered in the log as sealed; only then may it leave. Its name is a hash of the log up to its charge. So there are
two kinds of updates that a log does not know as sealed, distinguished by their names:

- The log gives this name to one of its charges. Either a crash came between file and entry, and the update never left;
  or a copy from this moment was restored, and it did leave. In both cases the log holds its charge, and an attempt that
  was charged cannot be charged, or trained, again.
- The log does not give this name. No crash causes that: charges were lost, and the log must not be used.

Formal guarantee: a log that is restored in place of another, beside the unchanged folder, gives a name to every update
in it only if it holds the charge of every update that has left. Proof: the update with the newest charge always stays
(`keep_only`), no update that has left was charged after it, and a log that gives it its name begins like the log that
charged it. A folder that is restored, or deleted, together with its log reveals nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from fedprivacy._support.durable import Room, allocate, delete_unnamed, name_durably, room_in, sync_folder, write_into
from fedprivacy._support.failpoints import reach
from fedprivacy.guard.errors import LogDamagedError
from fedprivacy.guard.frames import BLOCK, MAGIC

ENTRIES_ROOM = 16 * BLOCK
"""Number of bytes allocated behind a log's end for a round's entries, and those of other rounds at the same time."""

_SUFFIX = ".update"
_FOLDER = ".sealed"


def folder_of(log: Path, identity: str) -> Path:
    """Return the folder of the updates that a log has sealed.

    Args:
        log: the log's file, with links resolved.
        identity: identity of the log. A copy has the same, so that a copy under another name finds the same updates.
    """
    end = f".{identity}{_FOLDER}"
    named = log.with_name(log.name + end)
    if not named.exists():
        return min((folder for folder in log.parent.iterdir() if folder.name.endswith(end)), default=named)
    return named


def is_of_a_guard(path: Path) -> bool:
    """Return whether a path is a log of charges, under whatever name, or a folder of sealed updates.

    Raises:
        OSError: it cannot be read.
    """
    if path.name.endswith(_FOLDER) or not path.is_file():
        return path.name.endswith(_FOLDER)
    with path.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def bearing_witness(log: Path, identity: str) -> dict[str, Path]:
    """Return the updates that a log must know, each with its folder: those of its identity, and of its name.

    Another log in its place has another identity, and does not know the updates that were sealed under the name.

    Raises:
        OSError: a folder cannot be read.
    """
    folders = dict.fromkeys([folder_of(log, identity), *folders_named_after(log)])
    return {name: folder for folder in folders for name in names_in(folder)}


def folders_named_after(log: Path) -> list[Path]:
    """List every folder of updates that a log of this name has sealed, whatever its identity; one of an older form has
    none in its name.
    """
    names = re.compile(re.escape(log.name) + r"(\.[0-9a-f]{16})?" + re.escape(_FOLDER))
    # Sort last: every transaction looks here, and a data folder may hold many files.
    return sorted(folder for folder in log.parent.iterdir() if names.fullmatch(folder.name))


def refuse_if_gone(log: Path) -> None:
    """Refuse to start a log if one of its name has sealed updates that still exist.

    Raises:
        LogDamagedError: such updates exist.
        OSError: its folder cannot be read.
    """
    for folder in [] if log.exists() else folders_named_after(log):
        if names_in(folder):
            raise LogDamagedError(log, 0, f"it is gone, but {folder} holds updates that it sealed")


def move(log: Path, identity: str, aside: Path) -> None:
    """Rename the folder of a log's updates along with the log, before the log itself."""
    folder = folder_of(log, identity)
    if folder.exists():
        folder.rename(aside.with_name(f"{aside.name}.{identity}{_FOLDER}"))
        sync_folder(aside.parent)


def names_in(folder: Path) -> set[str]:
    """Return the names of the updates in a folder.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return {file.name for file in folder.iterdir() if file.name.endswith(_SUFFIX)}
    except FileNotFoundError:  # nothing was sealed yet
        return set()


def name_of(log: str) -> str:
    """Return the file name of an update: the hash of the log up to its charge; a server chooses no part of it."""
    return log + _SUFFIX


@contextmanager
def room_for(log: Path, identity: str, size: int) -> Iterator[Room]:
    """Hold room for an update of `size` bytes, and behind the end of its log for what is entered; call it under the
    log's lock.

    Raises:
        OSError: there is no room, or the folder cannot be written.
    """
    folder = _make_folder(folder_of(log, identity))
    with log.open("rb+") as opened:
        allocate(opened.fileno(), ENTRIES_ROOM, opened.seek(0, os.SEEK_END))
    with room_in(folder, size) as room:
        reach("client.room-held")
        yield room


def write(file: Path, update: bytes, room: Room | None = None) -> None:
    """Write an update durably, whole or not at all, into the room that was held for it, if any was.

    Raises:
        OSError: it cannot be written.
    """
    _make_folder(file.parent)
    unnamed = write_into(room, file, update)
    reach("client.seal-written")
    name_durably(unnamed, file)
    reach("client.seal-named")


def _make_folder(folder: Path) -> Path:
    """Make the folder of sealed updates, durably, if it is not there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)
    return folder


def read(file: Path, digest: str) -> bytes | None:
    """Return the update, if it exists and has the sealed SHA-256, in hexadecimal; else None."""
    try:
        update = file.read_bytes()
    except OSError:
        return None
    return update if sha256(update).hexdigest() == digest else None


def keep_only(folder: Path, wanted: Collection[str], places: Mapping[str, int]) -> None:
    """Delete updates that are not wanted, except the one with the newest charge, and files left by a crash.

    `places` maps the names of all updates here to the places of their charges in the log.

    Raises:
        OSError: the folder cannot be read or written.
    """
    held = names_in(folder)
    charged_last = max(held, key=places.__getitem__)
    for name in held.difference(wanted, [charged_last]):
        (folder / name).unlink()
    delete_unnamed(folder)
