"""A backup of one host's folder, taken while its processes run: a tar file, from which the host is made anew.

What records what was spent is copied last: a ledger must not be behind the checkpoints and signed heads, nor a guard
behind the updates that it has sealed. SQLite copies each database as it was at one moment. Left out are the private
records, and what installing and running make anew.
"""

from __future__ import annotations

import os
import sqlite3
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from fedprivacy._support.durable import PRIVATE, name_durably
from fedprivacy.deploy.description import Party, SetupError
from fedprivacy.deploy.server_inspection import RUN_CONFIG
from fedprivacy.flower.client.node import NODE_CONFIG, NodeSettings
from fedprivacy.flower.unpublished import UNPACKED_APPS
from fedprivacy.ledger import Ledger, default_url
from fedprivacy.ledger.export import verify_export, write_export

EXPORT = "ledger.jsonl"
"""Name in a server's backup of the ledger's export, which any database can import."""

_MADE_ANEW = {UNPACKED_APPS, *(f"nginx/{name}" for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"))}
"""Folders of a party that running makes anew; Flower unpacks in the first what it is sent."""

_DATABASE = b"SQLite format 3\0"
_BESIDE_A_DATABASE = ("-wal", "-shm", "-journal")


class Backup(NamedTuple):
    """A backup that was written.

    Attributes:
        files: their number.
        size: in bytes, of the backup.
        entries: of a server's ledger, all of them verified; None where there is no ledger: on a client's host, and
            before the first run.
        left_out: what must be kept by other means: a client's records, and a guard that lies elsewhere.
    """

    files: int
    size: int
    entries: int | None
    left_out: tuple[Path, ...]


def write_backup(folder: Path, out: Path) -> Backup:
    """Back up a party's folder; the party's processes may run meanwhile.

    Args:
        folder: of the server or of a client, as `fedprivacy deploy init` wrote it.
        out: new file outside of `folder`. Only this account can read it, since the host's secret keys are in it.

    Raises:
        SetupError: the folder holds no part of a deployment; or `out` exists, or lies in the folder.
        Refused, TOMLDecodeError: the party's settings cannot be read.
        BrokenJournalError, LedgerError: the server's ledger does not verify, or cannot be read; nothing was written.
        OSError: a file cannot be read or written; nothing was written.
    """
    folder, out = folder.resolve(), out.resolve()
    party = Party.read(folder)
    if out.exists() or out.is_relative_to(folder):
        wrong = "exists" if out.exists() else f"lies in {folder} and would be lost with it"
        raise SetupError(f"out is '{out}', which {wrong}; name a new file, best on another disk.")
    own = None if party.is_server else _Own.of(folder)
    with tempfile.TemporaryDirectory(dir=out.parent) as made:
        draft, copy = Path(made) / "draft", Path(made) / "copy"
        guard = own.guard if own else None
        kept = sorted((path == guard, _is_database(path), path) for path in _files_to_keep(folder, own))
        with tarfile.open(draft, "w") as archive:
            for _, is_database, path in kept:
                if is_database:
                    copy.unlink(missing_ok=True)  # as the database is now, whatever is being written
                    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                        source.backup(target)
                    copy.chmod(path.stat().st_mode)
                _add(archive, copy if is_database else path, path.relative_to(folder))
            entries = _export_ledger(folder, copy) if party.is_server else None
            if entries is not None:
                _add(archive, copy, Path(EXPORT))
        draft.chmod(PRIVATE)
        name_durably(draft, out)
    elsewhere = [own.records] + [own.guard] * (not own.guard.is_relative_to(folder)) if own else []
    return Backup(len(kept), out.stat().st_size, entries, tuple(elsewhere))


class _Own(NamedTuple):
    """The places of a client's records and guard, links resolved."""

    records: Path
    guard: Path

    @classmethod
    def of(cls, folder: Path) -> _Own:
        settings = NodeSettings.of(tomllib.loads((folder / NODE_CONFIG).read_text()))
        return cls(settings.folder.resolve(), settings.guard.resolve())

    def is_private(self, file: Path) -> bool:
        """True of a record: a file among the records that is neither the guard nor what it has sealed beside it."""
        beside = file.relative_to(self.guard.parent).parts[:1] if file.is_relative_to(self.guard.parent) else ("",)
        return file.is_relative_to(self.records) and not beside[0].startswith(self.guard.name)


def _files_to_keep(folder: Path, own: _Own | None) -> Iterator[Path]:
    """The files, links and empty folders of a party's folder that belong in its backup."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if not _is_made_anew(here / name, folder)]
        if not folders and not files and not (own and own.is_private(here)):
            yield here  # a service's sandbox cannot make the folder that it writes to
        for path in map(here.joinpath, files):
            beside = path.name.endswith(_BESIDE_A_DATABASE)
            if (path.is_symlink() or path.is_file()) and not beside and not (own and own.is_private(path)):
                yield path


def _is_made_anew(path: Path, folder: Path) -> bool:
    inside = path.relative_to(folder).as_posix()
    return path.name == "__pycache__" or inside in _MADE_ANEW or (path / "pyvenv.cfg").exists()


def _is_database(path: Path) -> bool:
    with suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as file:
        return not path.is_symlink() and file.read(len(_DATABASE)) == _DATABASE
    return False  # deleted since it was listed, a link to nothing, or an empty folder


def _export_ledger(folder: Path, copy: Path) -> int | None:
    """Export the ledger that the server's runs charge; return its number of entries, once they are verified."""
    url = tomllib.loads((folder / RUN_CONFIG).read_text()).get("ledger") or default_url()
    if not Ledger.exists(url):
        return None
    copy.unlink(missing_ok=True)
    with Ledger(url, create=False) as ledger, ledger.database.reading() as connection, copy.open("w") as out:
        write_export(connection, out)
    return verify_export(copy).head.number


def _add(archive: tarfile.TarFile, path: Path, name: Path) -> None:
    """Add a file as it is when it is opened: what replaces it, or is appended to it, meanwhile does not count."""
    if path.is_symlink() or path.is_dir():
        archive.add(path, name, recursive=False)
        return
    with suppress(FileNotFoundError), path.open("rb") as file:  # deleted since it was listed
        archive.addfile(archive.gettarinfo(arcname=str(name), fileobj=file), file)
