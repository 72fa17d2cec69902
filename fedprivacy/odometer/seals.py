"""The folder of sealed updates, beside the log: what has left, or may have left, kept to be sent again.

An update is differentially private already and was charged; sending the same bytes twice tells nothing more. Training
again would: so a client that died on the way to the server sends what it sealed.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

from fedprivacy.durable import PRIVATE, UNNAMED, name_durably, sync_folder, write_unnamed
from fedprivacy.failpoints import reach
from fedprivacy.odometer.records import ChargeKey

_SUFFIX = ".update"


def folder_of(log: Path) -> Path:
    """Where the updates lie that a log knows as sealed."""
    return log.with_name(f"{log.name}.sealed")


def holds_updates(folder: Path) -> bool:
    """Whether an update was ever sealed here."""
    return any(folder.glob(f"*{_SUFFIX}"))


def name_of(key: ChargeKey) -> str:
    """The file name of an update: a hash, because the server chose the words of the key."""
    return sha256(repr(tuple(key)).encode()).hexdigest() + _SUFFIX


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
    """The update, if it is there and is the one that was sealed; else None.

    Args:
        file: where it lies.
        digest: its SHA-256, in hexadecimal.
    """
    try:
        update = file.read_bytes()
    except OSError:
        return None
    return update if sha256(update).hexdigest() == digest else None


def keep_only(folder: Path, names: Collection[str]) -> None:
    """Delete all other updates, and what a crash left without a name.

    Raises:
        OSError: the folder cannot be written.
    """
    for file in [*folder.glob(f"*{_SUFFIX}"), *folder.glob(f".*{UNNAMED}")]:
        if file.name not in names:
            file.unlink()
