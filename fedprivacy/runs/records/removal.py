"""Runs that failed or are not wanted any more: their errors, and their folders' end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.folder import ERROR, RunFolderError, hold, read_run_id
from fedprivacy.runs.settings.configuration import CONFIG, LEDGER, RUNS
from fedprivacy.values.wording import count_text


def remove_runs(folders: Sequence[Path]) -> None:
    """Delete runs' folders with everything in them. What was charged to a ledger elsewhere stays charged.

    Raises:
        RunFolderError: one holds no run, one that goes on, or a ledger that other runs are charged to. None is deleted.
    """
    with ExitStack() as held:
        for folder in dict.fromkeys(folders):
            _check_removable(folder)
            held.callback(os.close, hold(folder / CONFIG))  # raises if another process runs it
        for folder in dict.fromkeys(folders):
            shutil.rmtree(folder)


def _check_removable(folder: Path) -> None:
    if not (folder / CONFIG).is_file():
        raise RunFolderError(f"'{folder}' holds no run; name a folder that a run wrote to.")
    if others := [run for run in _charged_to(folder / LEDGER) if run != read_run_id(folder)]:
        raise RunFolderError(
            f"'{folder}' holds the ledger of {count_text(len(others), 'other run')}, whose charges must not be lost; "
            "keep it."
        )


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


def _charged_to(ledger: Path) -> list[str]:
    """Return the run_ids in a ledger's file; empty if there is none."""
    if not ledger.is_file():
        return []
    catalogue = Catalogue([str(ledger)])
    try:
        return [run.facts.run_id for run in catalogue.listing().runs]
    finally:
        catalogue.close()
