"""SGD without privacy, the baseline of DP-SGD: the same samples, steps and optimiser, without clipping and noise.

Nothing here is private. A simulation compares with it (`fedprivacy.flower.baseline`); no module that a deployed client
loads imports this one, and a test holds that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from fedprivacy.gradients.layout import ONE_ROW, Layout
from fedprivacy.gradients.losses import Loss, checked_losses
from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.algorithms import FEDAVG, Algorithm, LocalUpdate
from fedprivacy.training.augment import Views
from fedprivacy.training.descent import Descent, ModelAt
from fedprivacy.training.local_round import NOTHING_KEPT, Kept, local_round
from fedprivacy.training.optimizers import Optimizer
from fedprivacy.training.sampled import sampled_batches

_MOST_RECORDS = 4096
"""Maximum number of rows whose gradients are computed at once; a larger sample is split and its sums are added."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Local training whose result depends on records without any bound.

    The attributes are those of `DPSGD`, and the layout is that of the engine.
    """

    sampling_rate: float
    expected_batch_size: float
    optimizer: Optimizer
    proximal_mu: float = 0.0
    algorithm: Algorithm = FEDAVG
    views: Views | None = None
    layout: Layout = ONE_ROW

    def train(
        self,
        model: nn.Module,
        loss: Loss,
        shard: Shard,
        *,
        steps: int,
        round: int,
        keystream: Keystream,
        before: Kept = NOTHING_KEPT,
    ) -> LocalUpdate:
        """Take local steps from the model's present parameters, which are then those that are sent.

        With the keystream of a private run, each step hears the records that the private run hears.

        Returns:
            What the algorithm sends and keeps, flat: not private.

        Raises:
            LossShapeError: the loss is not one value for each record.
        """

        at, shard = ModelAt(model), shard.present()

        def mean_gradient(step: int, position: Tensor) -> Tensor:
            at.go(position)
            now = Position(round, step)
            sample = poisson_sample(self.sampling_rate, len(shard.inputs), keystream, now)
            parts = sampled_batches(shard, sample, self.layout, self.views, keystream, now)
            total = reduce(torch.add, (_gradient_sum(model, loss, *self.layout.weighted(*part)) for part in parts))
            return total.div(self.expected_batch_size).to(position.dtype)

        descent = Descent(mean_gradient, self.optimizer, self.proximal_mu, steps)
        client = local_round(self.algorithm, model, before, descent)
        update = self.algorithm.train(client)
        at.go(update.sent)
        return update


def _gradient_sum(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The sum of rows' gradients by weights, shape [d]; of none it is zero."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.cat([torch.zeros_like(p).flatten() for p in trained])
    by_part = (rows.split(_MOST_RECORDS) for rows in (inputs, targets, weights))
    for some, theirs, weigh in zip(*by_part, strict=True):
        if not len(some):  # what an empty tensor is split into
            break
        losses = checked_losses(loss(model(some), theirs), len(some))
        gradients = torch.autograd.grad((weigh * losses).sum(), trained, materialize_grads=True)
        total += torch.cat([gradient.flatten() for gradient in gradients])
    return total
