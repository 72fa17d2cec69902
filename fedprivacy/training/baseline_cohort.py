"""The baseline for a cohort: many clients from one starting point, stacked where their models are small.

What each client arrives at is what `fedprivacy.training.baseline` would have it arrive at, from the same samples, up to
the rounding of float32: a stack computes the same sums by other products. Nothing here is private, and no module that a
deployed client loads imports this one, as it imports none of the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedprivacy.gradients import GradientEngine
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.stacked import Pool, Stack
from fedprivacy.mechanisms.gaussian_sum import poisson_samples
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.algorithms import FEDAVG, Algorithm
from fedprivacy.training.augment import Views
from fedprivacy.training.baseline import Baseline
from fedprivacy.training.cohort import Portion, alike, tried
from fedprivacy.training.descent import Descent
from fedprivacy.training.local_round import Kept, stacked_round
from fedprivacy.training.optimizers import Optimizer


@dataclass(frozen=True, slots=True)
class Unclipped:
    """Every gradient counts as it is. It breaks the promise of `Clipping`, so no setting names it, nor any client."""

    def groups(self, names: Sequence[str]) -> list[int]:
        """One group."""
        return [0] * len(names)

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        """One for each record, whatever its norm."""
        return torch.ones_like(squared_norms)


@dataclass(frozen=True, slots=True)
class BaselineTrainee:
    """One client of a cohort, as `Baseline` knows it, and what it kept of its last round."""

    shard: Shard
    keystream: Keystream
    sampling_rate: float
    expected_batch_size: float
    steps: int
    own: Tensor | None = None


@dataclass(frozen=True, slots=True)
class BaselineCohort:
    """Trains clients from the engine's present parameters, without clipping and noise.

    Attributes:
        engine: its model is the starting point, and is so again afterwards; its clipping is `Unclipped`, and its layout
            counts the views.
        loss: of the engine.
        optimizer, proximal_mu, algorithm, views: see `Baseline`.
        control: what the server sends besides the model, shape [d]; None: nothing.
    """

    engine: GradientEngine
    loss: Loss
    optimizer: Optimizer
    proximal_mu: float = 0.0
    algorithm: Algorithm = FEDAVG
    control: Tensor | None = None
    views: Views | None = None

    def train(self, trainees: Sequence[BaselineTrainee], round: int) -> Iterator[Portion]:
        """Train every client, in portions; a client that cannot be trained in a stack trains alone."""
        left = set(range(len(trainees)))
        for places in alike(trainees):
            for portion in self._together(places, [trainees[place] for place in places], round):
                left.difference_update(portion.places)
                yield portion
        for place in sorted(left):
            yield tried(self.engine.model, partial(self._alone, place, trainees[place], round), [place])

    def _alone(self, place: int, one: BaselineTrainee, round: int) -> Portion:
        rate, batch, options = one.sampling_rate, one.expected_batch_size, (self.optimizer, self.proximal_mu)
        training = Baseline(rate, batch, *options, self.algorithm, self.views, self.engine.layout)
        before, model = Kept(one.own, self.control), self.engine.model
        update = training.train(
            model, self.loss, one.shard, steps=one.steps, round=round, keystream=one.keystream, before=before
        )
        kept = None if update.kept is None else update.kept.unsqueeze(0)
        return Portion([place], update.sent.unsqueeze(0), [math.inf], kept)

    def _together(self, places: list[int], trainees: Sequence[BaselineTrainee], round: int) -> Iterator[Portion]:
        """Train clients with the same number of steps as one stack; yield those whose results are all finite."""
        shard = trainees[0].shard
        stack = self.engine.stack(shard.inputs, shard.targets) if self.views is None else None
        if stack is None:
            return
        portion = tried(self.engine.model, partial(self._stacked, stack, places, trainees, round), places)
        done = portion.parameters.isfinite().all(1)
        if portion.kept is not None:
            done &= portion.kept.isfinite().all(1)
        if portion.problem is None and bool(done.any()):
            yield _rows(portion, done.nonzero().squeeze(1))

    def _stacked(self, stack: Stack, places: list[int], trainees: Sequence[BaselineTrainee], round: int) -> Portion:
        """All clients step by step; they have the same number of steps."""
        pool = Pool.of([(one.shard.inputs, one.shard.targets) for one in trainees])
        divisors = torch.tensor([[one.expected_batch_size] for one in trainees], dtype=torch.float64)

        def means(step: int, positions: Tensor) -> Tensor:
            return self._sums(stack, pool, positions, trainees, Position(round, step)).div_(divisors).float()

        descent = Descent(means, self.optimizer, self.proximal_mu, trainees[0].steps)
        own = [one.own for one in trainees]
        update = self.algorithm.train(stacked_round(self.algorithm, self.engine.model, own, self.control, descent))
        return Portion(places, update.sent, [math.inf] * len(places), update.kept)

    def _sums(
        self, stack: Stack, pool: Pool, positions: Tensor, trainees: Sequence[BaselineTrainee], position: Position
    ) -> Tensor:
        """The sum of each client's gradients over its sample, [clients, d], float64.

        A stack leaves out records without a finite gradient. The baseline leaves out nobody: such a sum is no number.
        """
        rates = np.array([one.sampling_rate for one in trainees])
        sizes, keystreams = [len(one.shard.inputs) for one in trainees], [one.keystream for one in trainees]
        batches = poisson_samples(rates, sizes, keystreams, position)
        heard = stack.clip(positions, pool, batches, np.full(len(trainees), math.inf))
        owners = torch.arange(len(batches)).repeat_interleave(torch.tensor([len(batch) for batch in batches]))
        heard.totals[owners[heard.squared_norms.isnan()]] = math.nan
        return heard.totals


def _rows(portion: Portion, rows: Tensor) -> Portion:
    """Some clients of a portion."""
    kept = None if portion.kept is None else portion.kept[rows]
    places = [portion.places[row] for row in rows.tolist()]
    return Portion(places, portion.parameters[rows], [math.inf] * len(places), kept)
