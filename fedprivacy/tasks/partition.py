"""Splits of a table over simulated clients, by the partitioners of `flwr-datasets`."""

from __future__ import annotations

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from fedprivacy.tasks.protocol import ShardSource


def partition_rows(partitioner: Partitioner, labels: NDArray[np.int64], source: ShardSource) -> NDArray[np.int64]:
    """Row numbers of one simulated client.

    Args:
        partitioner: any `flwr-datasets` partitioner; `label` and `row` are the columns it can use.
        labels: shape [records], what the split may depend on.
        source: which part is wanted.

    Raises:
        ValueError: the source names no partition, or the partitioner cannot make that many.
    """
    if source.partition_id is None:
        raise ValueError("This task has only simulated clients: give the client a partition-id, or use its own folder.")
    partitioner.dataset = Dataset.from_dict({"row": np.arange(len(labels)), "label": labels})
    return np.asarray(partitioner.load_partition(source.partition_id)["row"], dtype=np.int64)
