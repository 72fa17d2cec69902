"""Splits of records over simulated clients, by the partitioners of `flwr-datasets`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedprivacy.tasks.protocol import ShardSource


@dataclass(frozen=True, slots=True)
class DirichletSplit:
    """Every client's mix of classes is a Dirichlet draw (Hsu, Qi, Brown 2019): the smaller alpha, the more they differ.

    Attributes:
        alpha: concentration, > 0.
        smallest_shard: least number of records of a client; the draw is repeated until it holds.
        seed: of the draw. It belongs to the task, not to a run, so that a client's shard stays its own over runs.
    """

    alpha: float
    smallest_shard: int
    seed: int

    def rows(self, labels: NDArray[np.int64], source: ShardSource) -> NDArray[np.int64]:
        """Row numbers of one simulated client.

        Args:
            labels: each record's class, shape [records].
            source: which part is wanted.

        Raises:
            ValueError: the source names no part, or the labels cannot be split into that many.
        """
        if source.partition_id is None or source.num_partitions is None:
            raise ValueError("The client names neither a data folder nor a part of the split; give it a folder.")
        # Imported here: a deployed client reads its folder and should not wait seconds for these in every round.
        from datasets import Dataset
        from flwr_datasets.partitioner import DirichletPartitioner

        partitioner = DirichletPartitioner(
            num_partitions=source.num_partitions,
            partition_by="label",
            alpha=self.alpha,
            min_partition_size=self.smallest_shard,
            self_balancing=False,
            seed=self.seed,
        )
        partitioner.dataset = Dataset.from_dict({"row": np.arange(len(labels)), "label": labels})
        return np.asarray(partitioner.load_partition(source.partition_id)["row"], dtype=np.int64)

    def describe(self, num_partitions: int) -> str:
        """The split's name, which differs whenever the split does."""
        return f"{num_partitions} parts, Dirichlet alpha {self.alpha:g}, seed {self.seed}"
