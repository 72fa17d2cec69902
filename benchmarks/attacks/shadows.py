"""Models that were trained on random halves of the records, so that each record is a member of some and not of others.

One of them is attacked; the others are shadow models, from which the attacker learns how a model takes a record that
it knows and how one that it does not know (Shokri et al. 2017). An attacker who cannot train has no use for them and
attacks each model by itself.

Every record joins every model by a coin of its own. So the two cases of a record are neighbours by
add-or-remove-one, and what differential privacy promises limits the curve (`limits`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.attacks.trainers import Trainer
from fedprivacy.tasks.task import Shard, Task

_LEAST_LOSS = 2.0**-52
"""A confidence of 1 would have an infinite logit; losses are computed in float64 and not told apart below this."""


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """Who is a member of which model, and each model's loss of each record.

    Attributes:
        members: whether the model was trained on the record, shape [models, records].
        losses: in float64, the same shape.
    """

    members: NDArray[np.bool_]
    losses: NDArray[np.float64]

    @property
    def confidences(self) -> NDArray[np.float64]:
        """Logit-scaled confidences of each record's target, shape [models, records]."""
        return logit_scaled(self.losses)


def train_shadows(task: Task, records: Shard, trainer: Trainer, *, models: int, seed: int) -> Shadows:
    """Train models on random halves of the records, and put every record to each.

    Args:
        task: its loss is what the attacks look at.
        records: which may be members.
        trainer: trains a model of the task.
        models: how many, at least 1.
        seed: of the halves; model m is trained with seed + m.
    """
    members = np.random.default_rng(seed).random((models, len(records.inputs))) < 0.5
    losses = np.empty(members.shape)
    for number, inside in enumerate(members):
        rows = torch.from_numpy(np.flatnonzero(inside))
        model = trainer(Shard(records.inputs[rows], records.targets[rows]), seed + number)
        losses[number] = losses_of(task, model, records)
    return Shadows(members, losses)


def losses_of(task: Task, model: nn.Module, records: Shard) -> NDArray[np.float64]:
    """A model's loss of each record, shape [records], computed in float64 from its outputs: small differences count.

    Raises:
        ValueError: a loss is negative or not finite: it is no -log of a confidence.
    """
    targets = records.targets.double() if records.targets.is_floating_point() else records.targets
    with torch.no_grad():
        losses = task.loss(model(records.inputs).double(), targets).numpy().astype(np.float64)
    if not np.isfinite(losses).all() or losses.min(initial=0.0) < 0.0:
        raise ValueError(f"the losses reach from {losses.min()} to {losses.max()}; the attacks need finite ones >= 0.")
    return losses


def logit_scaled(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(p / (1 - p)) of the confidence p = e^-loss, which is about normal over models (Carlini et al. 2022)."""
    return -np.log(np.expm1(np.maximum(losses, _LEAST_LOSS)))
