"""The null mechanism: a simulation's training without privacy, to compare with. Nothing here is private.

It samples the records that a private step samples, its clipping norm is infinite, and it adds no noise. Everything else
is private training's own: local steps, optimisers, algorithms (`fedprivacy.training.local_round`) and stacks of small
models (`fedprivacy.training.cohort`). One client alone needs no gradients of records, so those of batches are computed.

No module that a deployed client loads imports this one, no grant or setting can name it, and its results are of no type
that `fedprivacy.flower.client.release` sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.gradients.models import Loss, checked_losses
from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Position
from fedprivacy.training.batches import sampled_batches
from fedprivacy.training.cohort import CohortLoop, Portion, StackedClients, Trainee, tried
from fedprivacy.training.local_round import Kept, LocalSteps

_MOST_RECORDS = 4096
"""Maximum number of rows whose gradients are computed at once; a larger sample is split and its sums are added."""


@dataclass(frozen=True, slots=True)
class NullMechanism:
    """Poisson sampling alone. There is no event that could be charged for it."""

    sampling_rate: float

    @property
    def clipping_norm(self) -> float:
        """No gradient is longer."""
        return math.inf


@dataclass(frozen=True)
class PlainCohort(CohortLoop[NullMechanism]):
    """Training without privacy: its results depend on records without any bound.

    A client of a stack arrives where it would arrive `alone`, up to the rounding of float32: a stack computes the same
    sums by other products.

    Attributes:
        loss: the engine's.
    """

    loss: Loss = field(kw_only=True)

    def train(self, trainees: Sequence[Trainee[NullMechanism]], round: int) -> Iterator[Portion]:
        """Train every client, in portions; whoever a stack cannot train is trained alone.

        A stack computes each record's gradient, which may overflow where the batch's does not, and an error in it is
        one client's fault.
        """
        failed: list[int] = []
        for portion in super().train(trainees, round):
            done = portion.parameters.isfinite().all(1)
            if portion.kept is not None:
                done &= portion.kept.isfinite().all(1)
            if portion.problem is not None:
                done[:] = False
            failed += [place for place, fine in zip(portion.places, done.tolist(), strict=True) if not fine]
            if bool(done.any()):
                yield _rows(portion, done.nonzero().squeeze(1))
        for place in sorted(failed):
            yield tried(self.engine.model, partial(self.alone, place, trainees[place], round), [place])

    def alone(self, place: int, one: Trainee[NullMechanism], round: int) -> Portion:
        """Train one client by itself; the model is left with the parameters that are sent.

        With the keystream of a private run, each step's sample is that of the private run.

        Raises:
            LossShapeError: the loss is not one value for each record.
        """
        model, layout, shard = self.engine.model, self.engine.layout, one.shard.present()

        def mean_gradient(step: int) -> Tensor:
            now = Position(round, step)
            sample = poisson_sample(one.mechanism.sampling_rate, len(shard.inputs), one.keystream, now)
            parts = sampled_batches(shard, sample, layout, self.views, one.keystream, now)
            sums = (_gradient_sum(model, self.loss, *layout.weighted(*part)) for part in parts)
            return reduce(torch.add, sums).div(one.expected_batch_size)

        local = LocalSteps(self.optimizer, self.proximal_mu, self.algorithm)
        update = local.alone(model, mean_gradient, one.steps, Kept(one.own, self.control))
        kept = None if update.kept is None else update.kept.unsqueeze(0)
        return Portion([place], update.sent.unsqueeze(0), [math.inf], kept)

    def mean_gradients(
        self,
        clients: StackedClients[NullMechanism],
        positions: Tensor,
        norms: NDArray[np.float64],
        position: Position,
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Average each client's gradients over its sample.

        A stack leaves out records without a finite gradient. Here no record is left out: such a mean is no number.
        """
        found, batches = clients.clip(positions, norms, position)
        owners = torch.arange(len(batches)).repeat_interleave(torch.tensor([len(batch) for batch in batches]))
        found.totals[owners[found.squared_norms.isnan()]] = math.nan
        divisors = torch.tensor([[one.expected_batch_size] for one in clients.trainees], dtype=torch.float64)
        return found.totals.div_(divisors).float(), norms


def _gradient_sum(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Sum rows' gradients by weights, shape [d]; of no rows it is zero."""
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


def _rows(portion: Portion, rows: Tensor) -> Portion:
    """Some clients of a portion."""
    kept = None if portion.kept is None else portion.kept[rows]
    places = [portion.places[row] for row in rows.tolist()]
    return Portion(places, portion.parameters[rows], [math.inf] * len(places), kept)
