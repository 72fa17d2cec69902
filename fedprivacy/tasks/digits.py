"""Handwritten digits: ten hospitals' scans, from scikit-learn's bundled records (UCI; Alpaydin and Kaynak 1998)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.dpsgd import Shard
from fedprivacy.tasks.protocol import Recipe, ShardSource

TEST_SEED = 0
PARTITION_SEED = 42
DIRICHLET_ALPHA = 1.0
SMALLEST_SHARD = 40


class Digits:
    """1,797 scans of 8 x 8 pixels in ten classes; a fifth of them is the server's public test set.

    The other records are split over the clients by a Dirichlet draw over the classes. In a deployment a client reads
    `digits.npz` (arrays `images` [records, 8, 8] in 0..16 and `labels` [records]) from its own folder.

    The recipe was tuned on seeds 100 to 119 and frozen; seeds 0 to 9 were then run once: accuracy 0.924 on average,
    0.911 at least, at epsilon 3 for each of ten clients (0.971 without noise and clipping). What helps is to hear many
    records in a local step, each only a little: a high sampling rate and a small clipping norm.
    """

    name = "digits"
    dataset = "digits"
    metric = "accuracy"
    shard_sizes_public = True
    nominal_shard_size = None
    recipe = Recipe(
        rounds=60,
        local_steps=1,
        sampling_rate=0.5,
        clipping_norm=0.3,
        learning_rate=2.5,
        momentum=0.0,
        epsilon=3.0,
        delta=1e-4,
    )

    def model(self) -> nn.Module:
        """A small convolutional classifier; each record is standardised by its own pixels, never by the shard's."""
        return nn.Sequential(
            nn.LayerNorm([1, 8, 8], elementwise_affine=False),
            nn.Conv2d(1, 16, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.LayerNorm(256, elementwise_affine=False),
            nn.Linear(256, 10),
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each record, shape [batch]."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def shard(self, source: ShardSource) -> Shard:
        """The client's scans, from its folder or from the simulated split."""
        if source.folder is not None:
            with np.load(source.folder / "digits.npz") as archive:
                return _to_shard(archive["images"], archive["labels"])
        # Imported here: a deployed client reads its own folder and should not wait for these packages in every round.
        from flwr_datasets.partitioner import DirichletPartitioner

        from fedprivacy.tasks.partition import partition_rows

        images, labels, _, _ = _records()
        partitioner = DirichletPartitioner(
            num_partitions=source.num_partitions or 1,
            partition_by="label",
            alpha=DIRICHLET_ALPHA,
            min_partition_size=SMALLEST_SHARD,
            self_balancing=False,
            seed=PARTITION_SEED,
        )
        rows = partition_rows(partitioner, labels, source)
        return _to_shard(images[rows], labels[rows])

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Accuracy and loss on the public test set."""
        _, _, images, labels = _records()
        test = _to_shard(images, labels)
        with torch.no_grad():
            outputs = model(test.inputs)
        return {
            "accuracy": (outputs.argmax(1) == test.targets).float().mean().item(),
            "loss": self.loss(outputs, test.targets).mean().item(),
        }

    def partition(self, num_partitions: int) -> str:
        """The split's name."""
        return f"{num_partitions} parts, Dirichlet alpha {DIRICHLET_ALPHA}, seed {PARTITION_SEED}"


@cache
def _records() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(clients' images, clients' labels, public images, public labels)."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images.reshape(-1, 8, 8), labels, test_size=0.2, random_state=TEST_SEED, stratify=labels
    )
    return train_images, train_labels, test_images, test_labels


def _to_shard(images: np.ndarray, labels: np.ndarray) -> Shard:
    return Shard(
        torch.as_tensor(images, dtype=torch.float32).unsqueeze(1) / 16.0, torch.as_tensor(labels, dtype=torch.int64)
    )
