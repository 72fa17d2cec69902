"""The folder of sealed updates, beside the log: what has left, or may have left, kept to be sent again.

An update is differentially private already and was charged; sending the same bytes twice tells nothing more. Training
again would: so a client that died on the way to the server sends what it sealed.

The folder also bears witness against an older copy of the log that was put back beside it. An update is charged, then
written here, then entered in the log as sealed; only then may it leave. Its name is a hash of the log up to its charge.
So there are two kinds of updates that a log does not know as sealed, and their names tell them apart:

- The log gives this name to one of its charges. A crash came between file and entry, and the update never left; or an
  older copy was put back that was made in between, and it did leave. Either way it was paid for, here, and what was
  charged under one key cannot be charged, or trained, again.
- It does not. No crash leaves that: charges were forgotten, and the log is not to be used.

Formal guarantee: a log that is put back in the place of another, beside the folder as it is, gives a name to every
update that lies there only if it holds the charge of every update that has left. For the one that was charged last of
those that lie here always stays (`keep_only`), nothing that has left was charged after it, and a log that gives it its
name begins as the log did that charged it. A folder that is put back, or deleted, together with its log bears no
witness.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path

from fedprivacy._support.durable import PRIVATE, UNNAMED, name_durably, sync_folder, write_unnamed
from fedprivacy._support.failpoints import reach
from fedprivacy.guard.errors import LogDamagedError

_SUFFIX = ".update"
_FOLDER = ".sealed"


def folder_of(log: Path, identity: str) -> Path:
    """Return the folder of the updates that a log has sealed.

    Args:
        log: its file, with links resolved.
        identity: of the log. A copy has it too, so that a copy under another name finds the same updates. Empty: a log
            of an earlier version that has no entry.
    """
    end = f".{identity}{_FOLDER}" if identity else _FOLDER
    named = log.with_name(log.name + end)
    if identity and not named.exists():
        return min((folder for folder in log.parent.iterdir() if folder.name.endswith(end)), default=named)
    return named


def bearing_witness(log: Path, identity: str) -> dict[str, Path]:
    """Return the updates that a log must know, each with its folder: those of its identity, and of its name.

    Another log that is put in its place has another identity, and knows nothing of what was sealed under the name.

    Raises:
        OSError: a folder cannot be read.
    """
    folders = dict.fromkeys([folder_of(log, identity), *folders_named_after(log)])
    return {name: folder for folder in folders for name in names_in(folder)}


def name_by_identity(log: Path, identity: str) -> None:
    """Give the folder of an earlier version the name that a copy of the log finds; to be called under the log's lock.

    What lies in it is known to be the log's.
    """
    earlier, named = log.with_name(log.name + _FOLDER), log.with_name(f"{log.name}.{identity}{_FOLDER}")
    if identity and earlier.exists() and not named.exists():
        earlier.rename(named)
        sync_folder(log.parent)


def folders_named_after(log: Path) -> list[Path]:
    """Every folder of updates that a log of this name has sealed, whatever its identity."""
    names = re.compile(re.escape(log.name) + r"(\.[0-9a-f]{16})?" + re.escape(_FOLDER))
    # Sorted last: every transaction looks, and a data folder may hold many files.
    return sorted(folder for folder in log.parent.iterdir() if names.fullmatch(folder.name))


def refuse_if_gone(log: Path) -> None:
    """Begin no log where one of its name has sealed updates that are still there.

    Raises:
        LogDamagedError: so it is.
        OSError: its folder cannot be read.
    """
    for folder in [] if log.exists() else folders_named_after(log):
        if names_in(folder):
            raise LogDamagedError(log, 0, f"it is gone, but {folder} holds updates that it sealed")


def move(log: Path, identity: str, aside: Path) -> None:
    """Let the updates of a log go with it to another name in its folder, before the log does."""
    folder = folder_of(log, identity)
    if folder.exists():
        folder.rename(aside.with_name(f"{aside.name}.{identity}{_FOLDER}"))
        sync_folder(aside.parent)


def names_in(folder: Path) -> set[str]:
    """The names of the updates that lie here.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return {file.name for file in folder.iterdir() if file.name.endswith(_SUFFIX)}
    except FileNotFoundError:  # nothing was sealed yet
        return set()


def name_of(log: str) -> str:
    """The file name of an update: the hash of the log up to its charge, so that a server chooses no part of it."""
    return log + _SUFFIX


def write(file: Path, update: bytes) -> None:
    """Write an update durably, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(mode=0o700, exist_ok=True)
    sync_folder(file.parent.parent)
    unnamed = write_unnamed(file, update, PRIVATE)
    reach("client.seal-written")
    name_durably(unnamed, file)
    reach("client.seal-named")


def read(file: Path, digest: str) -> bytes | None:
    """The update, if it is there and is the one that was sealed, by its SHA-256 in hexadecimal; else None."""
    try:
        update = file.read_bytes()
    except OSError:
        return None
    return update if sha256(update).hexdigest() == digest else None


def keep_only(folder: Path, wanted: Collection[str], places: Mapping[str, int]) -> None:
    """Delete updates that are not wanted, but for the one that was charged last, and what a crash left without a name.

    `places` has the place of their charges in the log, for the names of all that lie here.

    Raises:
        OSError: the folder cannot be read or written.
    """
    held = names_in(folder)
    charged_last = max(held, key=places.__getitem__)
    unnamed = {file.name for file in folder.glob(f".*{UNNAMED}")}
    for name in held.union(unnamed).difference(wanted, [charged_last]):
        (folder / name).unlink()
