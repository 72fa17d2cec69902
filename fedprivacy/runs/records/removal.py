"""Runs that failed or are not wanted any more: their errors, and their folders' end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedprivacy.guard.seals import is_of_a_guard
from fedprivacy.ledger import Ledger, LedgerError
from fedprivacy.ledger.database import file_url
from fedprivacy.ledger.replay import BrokenJournalError, Replay
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.records.folder import ERROR, RunFolderError, hold, read_run_id, writing
from fedprivacy.runs.records.store import RECORD
from fedprivacy.runs.settings.configuration import LEDGER, RUNS
from fedprivacy.values.attempt import asking_for
from fedprivacy.values.wording import count_text

_SQLITE = b"SQLite format 3\0"
"""Beginning of every SQLite file: a run may have been told to charge one of any name."""

_PATIENCE = 0.5
"""Seconds to wait for a ledger that another process has locked."""


def remove_runs(folders: Sequence[Path]) -> None:
    """Delete runs' folders with everything in them. What was charged to a ledger elsewhere stays charged.

    The ledgers in a folder decide by their verified journals; no list of runs is asked.

    Raises:
        RunFolderError: one is a link, holds no run, one that goes on, another run's folder or a client's guard, or a
            ledger that other runs are charged to, that somebody has set a budget in, or that cannot be verified. None
            is deleted.
    """
    with ExitStack() as held:
        for folder in folders:
            if folder.is_symlink():
                raise RunFolderError(f"'{folder}' is a link; name the folder itself, '{folder.resolve()}'.")
        each = {folder.resolve(): folder for folder in folders}
        for folder in each.values():
            held.callback(os.close, hold(folder))  # raises if there is no run, or another process runs it
            _check_removable(folder)
        for place, folder in each.items():
            with writing(folder):
                shutil.rmtree(place)


def charged_in(folder: Path) -> set[str]:
    """Return the run_ids that are charged in a folder's ledgers, by their verified journals.

    Raises:
        RunFolderError: a ledger or a folder cannot be read.
    """
    return {charge.run_id for file in _files(folder) if _is_ledger(file) for charge in _replay(file).charges}


def _check_removable(folder: Path) -> None:
    run_id = read_run_id(folder)
    for file in _files(folder):
        if file.name == RECORD and file.parent != folder:
            raise RunFolderError(
                f"'{folder}' holds another run's folder, '{file.parent}'; name that first, or keep it."
            )
        if is_of_a_guard(file):
            raise RunFolderError(
                f"'{folder}' holds a client's guard, '{file}', whose charges must not be lost; keep it."
            )
        if _is_ledger(file):
            _check_own(folder, run_id, _replay(file))


def _check_own(folder: Path, run_id: str, replay: Replay) -> None:
    """Refuse to delete a ledger that holds more than a run's own charges and those of its own question."""
    known = {*replay.runs, *(charge.run_id for charge in replay.charges)}
    if others := [other for other in known if other != run_id and not other.startswith(asking_for(run_id))]:
        raise RunFolderError(
            f"'{folder}' holds the ledger of {count_text(len(others), 'other run')}, whose charges must not be lost; "
            "keep it."
        )
    if decided := [dataset_id for dataset_id, written in replay.budgets.items() if written.deliberate]:
        raise RunFolderError(
            f"'{folder}' holds a ledger in which the budget of {decided[0]} was set by hand, which must not be lost; "
            "keep it."
        )


def _files(folder: Path) -> Iterator[Path]:
    """Yield every file and folder below a folder; links are not followed, as nothing behind them is deleted.

    Raises:
        RunFolderError: a part of it cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise RunFolderError(f"'{error.filename}' cannot be read ({error.strerror}); mend its permissions.") from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        yield from (path for name in (*folders, *files) if not (path := Path(parent, name)).is_symlink())


def _is_ledger(file: Path) -> bool:
    """Return whether a file is a ledger, or another SQLite file, of which only opening it tells."""
    if not file.is_file() or file.name == RECORD:
        return False
    with file.open("rb") as opened:
        return file.name == LEDGER or opened.read(len(_SQLITE)) == _SQLITE


def _replay(ledger: Path) -> Replay:
    """Verify a ledger, and return the state after all entries of its journal."""
    try:
        with Ledger(file_url(ledger), patience=_PATIENCE, create=False) as opened:
            return verify_ledger(opened).replay
    except (LedgerError, BrokenJournalError) as error:
        raise RunFolderError(
            f"'{ledger}' does not tell which runs are charged to it: {error} Until it does, its folder is kept."
        ) from error


def last_error(source: str = RUNS) -> tuple[Path, str]:
    """Return the folder of the run that failed last, and its error with where in the code it came from.

    Args:
        source: a folder of runs, or a run's own.

    Raises:
        RunFolderError: none of its runs failed.
    """
    place = Path(source)
    failed = [file for file in (place / ERROR, *place.glob(f"*/{ERROR}")) if file.is_file()]
    if not failed:
        raise RunFolderError(f"no run in '{source}' has failed; name another folder, or a run's own.")
    newest = max(failed, key=lambda file: file.stat().st_mtime)
    return newest.parent, newest.read_text(encoding="utf-8")
