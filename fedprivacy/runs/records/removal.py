"""Runs that failed or are not wanted any more: their errors, and their folders' end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.folder import ERROR, RunFolderError, hold, read_run_id
from fedprivacy.runs.settings.configuration import CONFIG, LEDGER, RUNS
from fedprivacy.values.wording import count_text


def remove_run(folder: Path) -> None:
    """Delete a run's folder with everything in it. What was charged to a ledger elsewhere stays charged.

    Raises:
        RunFolderError: it holds no run, one that goes on, or a ledger that other runs are charged to.
    """
    if not (folder / CONFIG).is_file():
        raise RunFolderError(f"'{folder}' holds no run; name a folder that a run wrote to.")
    if others := [run for run in _charged_to(folder / LEDGER) if run != read_run_id(folder)]:
        raise RunFolderError(
            f"'{folder}' holds the ledger of {count_text(len(others), 'other run')}, whose charges must not be lost; "
            "keep it."
        )
    held = hold(folder / CONFIG)  # raises if another process runs it
    try:
        shutil.rmtree(folder)
    finally:
        os.close(held)


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
