"""Splits of records over simulated clients, by the partitioners of `flwr-datasets`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DirichletSplit:
    """Every client's mix of classes is a Dirichlet draw (Hsu, Qi, Brown 2019): the smaller alpha, the more they differ.

    Attributes:
        alpha: concentration, > 0.
        smallest_shard: least number of records of a client (a quarter of the mean, where that is less); the draw is
            repeated until it holds.
        seed: of the draw. It belongs to the task, not to a run, so that a client's shard stays its own over runs.
    """

    alpha: float
    smallest_shard: int
    seed: int

    def rows(self, labels: NDArray[np.int64], num_partitions: int) -> list[NDArray[np.int64]]:
        """Row numbers of every client's records, one array for each of `num_partitions` clients.

        Args:
            labels: each record's class, shape [records].
            num_partitions: number of clients.

        Raises:
            ValueError: the records cannot be split into that many parts.
        """
        # Imported here: a deployed client reads its folder and should not wait seconds for these in every round.
        from datasets import Dataset
        from flwr_datasets.partitioner import DirichletPartitioner

        partitioner = DirichletPartitioner(
            num_partitions=num_partitions,
            partition_by="label",
            alpha=self.alpha,
            min_partition_size=min(self.smallest_shard, len(labels) // (4 * num_partitions)),
            self_balancing=False,
            seed=self.seed,
        )
        partitioner.dataset = Dataset.from_dict({"row": np.arange(len(labels)), "label": labels})
        return [np.asarray(partitioner.load_partition(part)["row"], dtype=np.int64) for part in range(num_partitions)]

    def describe(self, num_partitions: int) -> str:
        """The split's name, which differs whenever the split does."""
        return f"{num_partitions} parts, Dirichlet alpha {self.alpha:g}, seed {self.seed}"
