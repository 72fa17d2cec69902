"""Names that outlive a run: those of the built-in tasks, of clients, and of the datasets that budgets belong to."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedprivacy.tasks import Task

BUILT_IN = {
    "digits": "fedprivacy.tasks.digits:Digits",
    "cancer": "fedprivacy.tasks.cancer:Cancer",
}
"""Sources of the built-in tasks, by name."""

DEFAULT_TASK = "digits"


def simulated_client_id(partition_id: int, num_partitions: int) -> str:
    """Name the client that holds one part of a simulated split; names sort like numbers."""
    return f"client-{partition_id:0{len(str(num_partitions - 1))}d}"


def dataset_id(task: Task, client_id: str) -> str:
    """Name the dataset that a client's budget belongs to: its shard of the task's records, over all runs."""
    return f"{task.dataset}/{client_id}"


def key_hash(public_key: bytes) -> str:
    """Return the ledger's name of a client's key: SHA-256, in hexadecimal, of the PEM that Flower's SuperLink keeps."""
    return hashlib.sha256(public_key).hexdigest()
