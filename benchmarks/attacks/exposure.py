"""Exposure (Carlini et al. 2019): how much better a model takes made-up records that it was trained on than others.

Made-up records, canaries, are drawn; a few are inserted into the shard. A model that has memorised one gives it a loss
below that of nearly all candidates, which were drawn alike and left out. Among r candidates the exposure of a canary is
log2(r) - log2(rank), in bits: 0 where it comes last, log2(r) where it comes first, and 1.44 on average where the model
has learned nothing of it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.attacks.shadows import losses_of
from benchmarks.attacks.trainers import Trainer
from fedprivacy.tasks.task import Shard, Task

LEARNED_NOTHING = 1.0 / math.log(2.0)
"""Mean exposure, in bits, of a canary of any rank among very many."""


def exposures(inserted: NDArray[np.float64], candidates: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exposure of each inserted canary among candidates that were not inserted and itself, in bits.

    Equal losses count against the attacker.

    Args:
        inserted: losses of the inserted canaries, shape [inserted].
        candidates: losses of the others, shape [candidates].

    Returns:
        Bits, from 0 to log2(candidates + 1), shape [inserted].
    """
    ranks = 1 + np.searchsorted(np.sort(candidates), inserted, side="right")
    return np.asarray(np.log2(len(candidates) + 1) - np.log2(ranks))


def exposed(
    task: Task, records: Shard, trainer: Trainer, *, inserted: int, candidates: int, seed: int
) -> NDArray[np.float64]:
    """Train a model on the records and a few canaries, and say how exposed these are.

    Args:
        task: its loss ranks the canaries.
        records: the shard.
        trainer: trains a model of the task.
        inserted: canaries that join the shard, each once.
        candidates: canaries that do not.
        seed: of the canaries and of the training.

    Returns:
        Bits, shape [inserted].
    """
    made_up = canaries(records, inserted + candidates, seed)
    joined = Shard(
        torch.cat([records.inputs, made_up.inputs[:inserted]]), torch.cat([records.targets, made_up.targets[:inserted]])
    )
    losses = losses_of(task, trainer(joined, seed), made_up)
    return exposures(losses[:inserted], losses[inserted:])


def canaries(records: Shard, count: int, seed: int) -> Shard:
    """Made-up records: every feature, and the target, is that of a random record, drawn by itself."""
    generator = torch.Generator().manual_seed(seed)
    rows = records.inputs.reshape(len(records.inputs), -1)
    picked = torch.randint(len(records.inputs), (count, rows.shape[1]), generator=generator)
    inputs = rows.gather(0, picked).reshape(count, *records.inputs.shape[1:])
    targets: Tensor = records.targets[torch.randint(len(records.inputs), (count,), generator=generator)]
    return Shard(inputs, targets)
