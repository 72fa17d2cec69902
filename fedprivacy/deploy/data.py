"""Data folders for a rehearsal: the digits task's records, split over its hospitals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedprivacy.tasks import ShardSource
from fedprivacy.tasks.digits import Digits


def write_digits(clients: Sequence[str], client: str, folder: Path) -> None:
    """Write one client's part of the simulated split where a deployed client looks for it.

    Args:
        clients: all clients, in the order of the split.
        client: whose part it is.
        folder: gets the records.
    """
    Digits().write_folder(ShardSource(partition_id=clients.index(client), num_partitions=len(clients)), folder)
