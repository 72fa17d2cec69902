"""Base of the built-in tasks: scikit-learn's records, a fifth of them public, the rest split over the clients."""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedprivacy._support.imports import needing_extras
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.task import Shard, ShardSource, Task, holding_nan

log = logging.getLogger("fedprivacy.tasks")

PUBLIC_SHARE = 0.2
PUBLIC_SEED = 0
ARCHIVE = "records.npz"

Records = tuple[NDArray[np.float64], NDArray[np.int64]]
"""(features, shape [records, ...]; classes, shape [records])."""


@dataclass(frozen=True, slots=True)
class DirichletSplit:
    """Split in which every client's mix of classes is a Dirichlet draw (Hsu, Qi, Brown 2019); small alpha, large
    differences.

    Attributes:
        alpha: concentration, > 0.
        smallest_shard: minimum number of records of a client (a quarter of the mean, where that is less); the draw is
            repeated until it holds.
        seed: seed of the draw. It belongs to the task, not to a run, so that a client has the same shard in all runs.
    """

    alpha: float
    smallest_shard: int
    seed: int

    def rows(self, labels: NDArray[np.int64], num_partitions: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of every client's records, one array for each of `num_partitions` clients, by their
        classes; clients without any are warned of.

        Raises:
            ValueError: the records cannot be split into that many parts.
        """
        return [rows.copy() for rows in self._draw(labels.tobytes(), labels.dtype.str, num_partitions)]

    @lru_cache(maxsize=4)  # noqa: B019 - by the split's values: each client of a simulation asks for the same draw
    def _draw(self, labels: bytes, kind: str, num_partitions: int) -> list[NDArray[np.int64]]:
        # Imported here: a deployed client reads its folder and should not wait seconds for these in every round.
        with needing_extras(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # in a notebook without widgets, tqdm warns that it needs them for bars
            from datasets import Dataset
            from flwr_datasets.partitioner import DirichletPartitioner

        classes = np.frombuffer(labels, kind)
        partitioner = DirichletPartitioner(
            num_partitions=num_partitions,
            partition_by="label",
            alpha=self.alpha,
            min_partition_size=min(self.smallest_shard, len(classes) // (4 * num_partitions)),
            self_balancing=False,
            seed=self.seed,
        )
        partitioner.dataset = Dataset.from_dict({"row": np.arange(len(classes)), "label": classes})
        parts = [np.asarray(partitioner.load_partition(part)["row"], dtype=np.int64) for part in range(num_partitions)]
        if empty := sum(not len(rows) for rows in parts):
            log.warning(
                "%d of %d clients have no record: %d records are split with Dirichlet alpha %g; choose a larger alpha, "
                "or fewer clients.",
                *(empty, num_partitions, len(classes), self.alpha),
            )
        return parts

    def describe(self, num_partitions: int) -> str:
        """Return the split's name, which differs whenever the split does."""
        return f"{num_partitions} parts, Dirichlet alpha {self.alpha:g}, seed {self.seed}"


class BundledClassification(Task):
    """A classification task on bundled records.

    The server's public test set is a stratified fifth of the records. The others are split over the simulated clients;
    in a deployment a client reads `records.npz` (arrays `features` and `labels`) from its own folder.
    """

    split: ClassVar[DirichletSplit]

    @abstractmethod
    def load_records(self) -> Records:
        """Return all records, public and private."""

    @abstractmethod
    def scale(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute the model's inputs. Only public constants and the record itself may enter."""

    def by_column(self, features: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Return the records' cells under the names that questions use. A label may be anything."""
        rows = features.reshape(len(features), -1)
        return {f"feature {number}": values for number, values in enumerate(rows.T)} | {"label": labels}

    def shard(self, source: ShardSource) -> Shard:
        """Return the client's records, from its folder or from the simulated split."""
        return self._to_shard(*self._records(source))

    def table(self, source: ShardSource) -> Table:
        """Return the same records by column."""
        return Table(self.by_column(*self._records(source)))

    def write_folder(self, source: ShardSource, folder: Path) -> None:
        """Write one part of the simulated split to the place where a deployed client looks for its records."""
        features, labels = self._part(source)
        np.savez(folder / ARCHIVE, features=features, labels=labels)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Measure accuracy and mean loss on the public test set."""
        test = self._test()
        outputs = model(test.inputs)
        return {
            "accuracy": (outputs.argmax(1) == test.targets).float().mean().item(),
            "loss": self.loss(outputs, test.targets).mean().item(),
        }

    def partition(self, num_partitions: int) -> str:
        """Return the split's name."""
        return self.split.describe(num_partitions)

    def _records(self, source: ShardSource) -> Records:
        if source.folder is None:
            return self._part(source)
        with np.load(source.folder / ARCHIVE) as archive:
            return as_numbers(archive["features"]), as_numbers(archive["labels"])

    def _part(self, source: ShardSource) -> Records:
        if source.partition_id is None or source.num_partitions is None:
            raise ValueError("The client names neither a data folder nor a part of the split; give it a folder.")
        features, labels = self._separate()[0]
        rows = self._rows(source.num_partitions)[source.partition_id]
        return features[rows], labels[rows]

    @cache  # noqa: B019 - a task lives as long as its process
    def _rows(self, num_partitions: int) -> list[NDArray[np.int64]]:
        return self.split.rows(self._separate()[0][1], num_partitions)

    @cache  # noqa: B019 - a task lives as long as its process
    def _separate(self) -> tuple[Records, Records]:
        """Separate the records: (the clients' records, the server's public ones)."""
        with needing_extras():
            from sklearn.model_selection import train_test_split

        features, labels = self.load_records()
        private, public, private_labels, public_labels = train_test_split(
            features, labels, test_size=PUBLIC_SHARE, random_state=PUBLIC_SEED, stratify=labels
        )
        return (private, private_labels), (public, public_labels)

    @cache  # noqa: B019 - a task lives as long as its process
    def _test(self) -> Shard:
        """Return the server's public records."""
        return self._to_shard(*self._separate()[1])

    def _to_shard(self, features: NDArray[np.float64], labels: NDArray[np.int64]) -> Shard:
        inputs = torch.as_tensor(self.scale(features), dtype=torch.float32)
        unreadable = torch.from_numpy(~(np.isfinite(labels) & (labels % 1 == 0)))
        targets = torch.as_tensor(np.where(unreadable, 0, labels), dtype=torch.int64)
        return Shard(inputs, targets, null=unreadable | holding_nan(inputs))


def as_numbers(cells: NDArray[Any]) -> NDArray[Any]:
    """Return an array of numbers as it is; convert any other cell by cell, NaN where a cell holds no number.

    One cell that is no number turns the whole array into texts: each is converted back on its own.
    """
    if cells.dtype.kind in "biuf":
        return cells
    return Table({"cells": cells.reshape(-1)}).numbers("cells").reshape(cells.shape)
