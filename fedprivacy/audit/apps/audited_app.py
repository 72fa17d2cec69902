"""The app that is audited, and how it is asked: on which records, with which settings, with which randomness."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedprivacy._support import sources
from fedprivacy.audit.apps.adapter import App, AppError, Maker, Seen, Settings
from fedprivacy.audit.apps.watched_training import (
    Gradient,
    WatchedTraining,
    seed_everything,
    watch_training,
    with_parameters_of,
)
from fedprivacy.audit.subject import Effort
from fedprivacy.tasks import Shard
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

Sums = Sequence[tuple[Gradient, ...]]
"""Gradients by step and parameter, as an optimiser is given them."""

EVERY: Mapping[str, Any] = {"sampling_rate": 1.0, "steps": 1}
"""Settings of a training with one step that every record joins."""

SILENT = 1e-6
"""A noise multiplier that leaves sums readable."""

_MOST_RECORDS = 256
"""Maximum number of an app's records in a quick audit; a full one takes 8 times as many."""

_FAR = (1e3, 1e4, 1e5)
"""Distances by which own records are moved: half lose, in float32, a norm computed as a difference of large numbers."""

_STILL = 1e-9
"""Factor on the learning rate with which nothing moves the arrays that leave, so that their starting point shows."""


@dataclass(frozen=True)
class AuditedApp:
    """An app, some of its records, and the model that it is sent.

    Attributes:
        make: the app, anew.
        name: for errors.
        effort: how long the audit may take.
        seed: of all that the audit draws.
    """

    make: Maker
    name: str
    effort: Effort = Effort.QUICK
    seed: int = 0

    @cached_property
    def app(self) -> App:
        """The app as it was made, which never trains."""
        return self.make()

    @cached_property
    def shard(self) -> Shard:
        """The app's own records. Raises AppError: it has none."""
        seed_everything(self.seed, 3)
        try:
            inputs, targets = self.app.records()
        except Exception as error:
            raise AppError(f"app {self.name}: records() fails: {sources.describe_error(error)}.") from error
        if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor) and len(inputs) == len(targets) >= 8):
            raise AppError(
                f"app {self.name}: records() must return two tensors, inputs and targets of 8 records or more."
            )
        most = _MOST_RECORDS if self.effort is Effort.QUICK else 8 * _MOST_RECORDS
        return _as_they_are(inputs[:most], targets[:most])

    @cached_property
    def model(self) -> nn.Module:
        """The model that is sent to every training; always the same for one seed."""
        seed_everything(self.seed, 0)
        try:
            return self.app.model()
        except Exception as error:
            raise AppError(f"app {self.name}: model() fails: {sources.describe_error(error)}.") from error

    @property
    def event(self) -> PoissonSampledGaussian:
        """The event that is claimed for each step."""
        settings = self.app.settings
        return PoissonSampledGaussian(settings.sampling_rate, settings.noise_multiplier, self.app.relation)

    @property
    def count_is_private(self) -> bool:
        """Return whether neighbouring shards have one record more or less."""
        return self.app.relation is NeighbouringRelation.ADD_OR_REMOVE_ONE

    @property
    def unit(self) -> float:
        """The claimed deviation of the noise on a sum."""
        return self.app.settings.noise_multiplier * self.app.settings.clipping_norm

    def settings(self, **changed: Any) -> Settings:
        """Those that are claimed, with some changed, and the expected batch size that belongs to them."""
        settings = replace(self.app.settings, **changed)
        return replace(settings, expected_batch_size=settings.sampling_rate * len(self.shard))

    def train(
        self,
        shard: Shard,
        draw: int = 0,
        *,
        watched: Mapping[str, Any] = MappingProxyType({}),
        sums: Sums | None = None,
        shift: int | None = None,
        **changed: Any,
    ) -> WatchedTraining:
        """One training by a new app.

        Args:
            shard: its records.
            draw: which of many random states.
            watched: seeds that are changed or replaced; see `watch_training`.
            sums: in place of its own; see `watch_training`.
            shift: of clocks that repeat themselves; see `watch_training`.
            changed: settings other than those claimed.
        """
        app, model = self.make(), copy.deepcopy(self.model)  # before the seeds, which they may set
        asked = replace(self.settings(**changed), seed=seed_everything(self.seed, 1, draw))
        return watch_training(app, model, shard, asked, sums=sums, shift=shift, **watched)

    def rounds(self, shard: Shard, draw: int, count: int, **changed: Any) -> list[WatchedTraining]:
        """Several rounds of one new app, each from the first model; only the first is seeded. As `train`."""
        app, settings = self.make(), self.settings(**changed)
        own = seed_everything(self.seed, 1, draw)
        asked = [replace(settings, round=number, seed=own) for number in range(1, count + 1)]
        return [watch_training(app, copy.deepcopy(self.model), shard, each) for each in asked]

    def rehearse(self, app: App, draw: int, count: int) -> list[WatchedTraining]:
        """Several rounds of this app, each with a new model that has the parameters which the one before left.

        Raises:
            AppError: training fails in one of them.
        """
        model, settings, trainings = copy.deepcopy(self.model), self.settings(), []
        own = seed_everything(self.seed, 1, draw)
        for number in range(1, count + 1):
            training = watch_training(app, model, self.shard, replace(settings, round=number, seed=own))
            if training.error is not None:
                raise AppError(
                    f"app {self.name}: train() fails in round {number}: {sources.describe_error(training.error)}."
                )
            trainings.append(training)
            model = with_parameters_of(model, copy.deepcopy(self.model))
        return trainings

    def sum(self, shard: Shard, draw: int = 0, **changed: Any) -> Gradient:
        """The noisy sum of a training's first step, shape [d]: one step with every record unless `changed` says else.

        A training that fails has none: NaN. A step that is left out moves nothing: zeros.
        """
        asked = {**EVERY, **changed}
        return self.sum_of(self.train(shard, draw, **asked), **asked)

    def sum_of(self, training: WatchedTraining, step: int = 0, **asked: Any) -> Gradient:
        """The noisy sum of a step of a training that was asked with these settings."""
        settings = self.settings(**asked)
        divisor = self.app.divisor(settings)
        if training.error is not None:
            return np.full(self.size, np.nan)
        if self.at_optimizer:
            if training.steps_taken <= step:
                return np.zeros(self.size)
            return np.concatenate(training.steps[step].gradients or ()) * divisor
        return (_flatten(training) - self._still) * (divisor / settings.learning_rate)

    def sums(self, shard: Shard, draw: int = 0, **changed: Any) -> list[Gradient]:
        """The noisy sums of all steps of one training, shape [d] each; every record joins unless `changed` says else.

        An optimiser of torch is given zeros, so the model stands still. Otherwise the model moves, and the sum of a
        step is what it adds to a training with one step less and the same randomness.
        """
        asked = {"sampling_rate": 1.0, **changed}
        if self.at_optimizer:
            still = [tuple(np.zeros(size) for size in self.sizes)] * self.settings(**asked).steps
            training = self.train(shard, draw, sums=still, **asked)
            return [self.sum_of(training, step, **asked) for step in range(len(training.steps))]
        numbers = range(1, self.settings(**asked).steps + 1)
        left = [self.sum_of(self.train(shard, draw, shift=0, **asked | {"steps": n}), **asked) for n in numbers]
        return [left[0], *(after - before for before, after in pairwise(left))]

    @cached_property
    def _plain(self) -> WatchedTraining:
        return self.train(self.shard, noise_multiplier=SILENT, **EVERY)

    @cached_property
    def at_optimizer(self) -> bool:
        """Return whether sums are read at a torch optimiser."""
        steps = self._plain.steps
        return self.app.seen is Seen.AT_OPTIMIZER and bool(steps) and steps[0].gradients is not None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each parameter, or in each array that leaves."""
        if self.at_optimizer:
            return tuple(len(gradient) for gradient in self._plain.steps[0].gradients or ())
        return tuple(array.size for array in self._plain.arrays if array.size)

    @cached_property
    def size(self) -> int:
        """d, numbers in a sum."""
        return sum(self.sizes)

    @cached_property
    def _still(self) -> Gradient:
        """Arrays that left although nothing moved them."""
        rate = self.app.settings.learning_rate * _STILL
        return _flatten(self.train(self.shard, learning_rate=rate, noise_multiplier=SILENT, **EVERY))

    @cached_property
    def rounding(self) -> float:
        """The norm of what a sum may be off by: silent noise, and the rounding of what it moved."""
        silent = 4.0 * SILENT * self.app.settings.clipping_norm * float(np.sqrt(self.size))
        if self.at_optimizer:
            return silent
        settings = self.settings(sampling_rate=1.0)
        scale = self.app.divisor(settings) / settings.learning_rate
        return silent + 2.0**-22 * float(np.linalg.norm(self._still)) * scale

    def check(self) -> None:
        """Check whether the app trains at all, and does as it is asked. Raises AppError: says what it does instead."""
        try:
            _ = self.event
        except ValueError as error:
            raise AppError(f"app {self.name}: settings: {error}") from error
        training = self._plain
        if training.error is not None:
            raise AppError(self._failure(training.error)) from training.error
        if not training.fields:
            raise AppError(f"app {self.name}: train() returns nothing; return by name all that leaves the client.")
        if not training.steps:
            raise AppError(f"app {self.name}: train() took no batch from `records`; take every batch from there.")
        if len(training.steps) != 1:
            raise AppError(
                f"app {self.name}: train() was asked for 1 step with every record and took {len(training.steps)}; "
                "pass on asked.steps and asked.sampling_rate."
            )
        fetched = [len(step.joined) for step in self.train(self.shard).steps]
        if len(fetched) > 1 and fetched[0] >= len(self.shard) and not any(fetched[1:]):
            raise AppError(
                f"app {self.name}: train() took all records at once; take the batch of each step from `records`, so "
                "that the audit sees who joins."
            )
        silent, loud = (self._difference(noise_multiplier=n) for n in (SILENT, self.app.settings.noise_multiplier))
        if silent > self.unit * math.sqrt(self.size) and loud < 1.2 * silent:
            raise AppError(
                f"app {self.name}: train() was asked for next to no noise, and its sums differ as much as with "
                "noise; pass on asked.noise_multiplier."
            )

    def _failure(self, error: Exception) -> str:
        if self.train(self.shard, **EVERY).error is not None:
            return f"app {self.name}: train() fails: {sources.describe_error(error)}."
        return (
            f"app {self.name}: train() fails where it is asked for next to no noise: {sources.describe_error(error)}. "
            "Compute no epsilon in train(), where accountants may give up; epsilon() is asked for it."
        )

    def _difference(self, **asked: Any) -> float:
        one, other = (self.sum(self.shard, draw, **asked) for draw in (0, 1))
        return float(np.linalg.norm(one - other))

    @cached_property
    def repeats(self) -> bool:
        """Return whether a step with every record and next to no noise is always the same: nothing else is random."""
        return self._difference(noise_multiplier=SILENT) <= self.rounding + 1e-3 * self.app.settings.clipping_norm

    def generator(self, *purpose: int) -> torch.Generator:
        """Return the audit's own random numbers for a purpose."""
        return torch.Generator().manual_seed(int(np.random.SeedSequence([self.seed, 2, *purpose]).generate_state(1)[0]))


def _flatten(training: WatchedTraining) -> Gradient:
    return np.concatenate([np.zeros(0), *(array.ravel().astype(np.float64) for array in training.arrays)])


_as_they_are = partial(Shard, null=False)
"""Records of an app: it is the app that decides what becomes of NaN."""


def rows_of(shard: Shard, rows: Any) -> Shard:
    """Some records of a shard."""
    return _as_they_are(shard.inputs[rows], shard.targets[rows])


def beside(shard: Shard, record: Shard) -> Shard:
    """A shard with one record more, at its end."""
    return _as_they_are(torch.cat([shard.inputs, record.inputs]), torch.cat([shard.targets, record.targets]))


def variants(audited: AuditedApp) -> Iterator[tuple[str, Shard]]:
    """Single records, in words: the app's own, ones far from them, and with labels of others."""
    shard = audited.shard
    order = torch.randperm(len(shard), generator=audited.generator(0))
    own = order[: 4 if audited.effort is Effort.QUICK else 32]
    for row in own:
        yield "one of its own records", rows_of(shard, row[None])
    first = rows_of(shard, order[:1])
    unlike = (shard.targets != first.targets).reshape(len(shard), -1).any(1).nonzero()[:1, 0]
    other = _as_they_are(first.inputs, rows_of(shard, unlike if len(unlike) else order[-1:]).targets)
    yield "a record with another one's label", other
    if not first.inputs.is_floating_point():
        return
    for factor in (-10.0, 100.0, -1e3, 1e3):
        for target in (first.targets, other.targets):
            yield "a record of huge numbers", _as_they_are(first.inputs * factor, target)
    for target in (first.targets, other.targets):
        yield "a record of equal numbers", _as_they_are(torch.full_like(first.inputs, 100.0), target)
    for offset in _FAR:
        for row in own:
            yield "a record far from zero", _as_they_are(shard.inputs[row[None]] + offset, shard.targets[row[None]])
    yield "a record of zeros", _as_they_are(torch.zeros_like(first.inputs), first.targets)
    if not audited.app.only_numbers:
        for about, value in (("that is not a number", torch.nan), ("of infinite numbers", torch.inf)):
            yield f"a record {about}", _as_they_are(torch.full_like(first.inputs, value), first.targets)
