"""The records of a rehearsal's clients: three parts of the digits, or folders of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedprivacy.tasks import ShardSource, digits

HOSPITALS = ("hospital-0", "hospital-1", "hospital-2")


class DataError(ValueError):
    """There are no records to rehearse with; the message says what was looked for."""


class Digits:
    """The digits task's records, split over three hospitals.

    Attributes:
        clients: their names.
    """

    clients: tuple[str, ...] = HOSPITALS

    def __call__(self, client: str, folder: Path) -> None:
        """Write one client's part of the simulated split where a deployed client looks for it."""
        source = ShardSource(partition_id=self.clients.index(client), num_partitions=len(self.clients))
        digits.Digits().write_folder(source, folder)


class OwnFolders:
    """A folder that holds one folder of records for each client, named after it.

    Args:
        folder: of the folders.

    Raises:
        DataError: there are none.

    Attributes:
        clients: their names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clients = tuple(sorted(child.name for child in folder.glob("*/")))
        if not self.clients:
            raise DataError(f"data is '{folder}', which holds no folder; give each client's records a folder there.")

    def __call__(self, client: str, folder: Path) -> None:
        """Copy one client's records to where it will look for them: a rehearsal writes beside none that are real."""
        shutil.copytree(self._folder / client, folder, dirs_exist_ok=True)
