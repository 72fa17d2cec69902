"""Data folders for a rehearsal: the digits task's records, split over its hospitals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedprivacy.tasks import ShardSource, load_task


def write_digits(clients: Sequence[str], client: str, folder: Path) -> None:
    """Write one client's part of the simulated split where a deployed client looks for it.

    Args:
        clients: all clients, in the order of the split.
        client: whose part it is.
        folder: gets `digits.npz`.
    """
    source = ShardSource(partition_id=clients.index(client), num_partitions=len(clients))
    shard = load_task("digits").shard(source)
    np.savez(folder / "digits.npz", images=(shard.inputs * 16.0).squeeze(1).numpy(), labels=shard.targets.numpy())
