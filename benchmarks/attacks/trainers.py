"""How a task's models are trained where attacks on them are measured: with DP-SGD, and without any privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from fedprivacy.accounting import noise_multiplier
from fedprivacy.flower.simulated.without_privacy import NullMechanism, PlainCohort
from fedprivacy.gradients import GradientEngine
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.single.loop import Trained, train
from fedprivacy.tasks.task import Shard, Task
from fedprivacy.training.cohort import Trainee
from fedprivacy.training.optimizers import build_optimizer
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import History, NeighbouringRelation, PoissonSampledGaussian

Trainer = Callable[[Shard, int], nn.Module]
"""(the members, a seed) -> a new model that was trained on them, ready to predict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The settings that training with privacy and training without it have in common.

    Attributes:
        steps: how many.
        sampling_rate: q, probability with which each record joins a step.
        batch_size: the divisor of each sum: q times a guess of how many records there are.
        learning_rate: step size.
        optimizer: sgd, adam or adamw.
        momentum: of sgd.
    """

    steps: int
    sampling_rate: float
    batch_size: float
    learning_rate: float
    optimizer: str = "adam"
    momentum: float = 0.0


@dataclass(frozen=True, slots=True)
class WithoutPrivacy:
    """Trains a task's model by SGD without clipping and noise, as a baseline run does."""

    task: Task
    training: Training

    def __call__(self, records: Shard, seed: int) -> nn.Module:
        """A model that was trained on the records."""
        given, model = self.training, new_model(self.task, seed)
        optimizer = build_optimizer(given.optimizer, given.learning_rate, momentum=given.momentum)
        training = PlainCohort(GradientEngine(model, self.task.loss), optimizer, loss=self.task.loss)
        keystream, mechanism = Keystream.from_seed(seed, "attacked"), NullMechanism(given.sampling_rate)
        training.alone(0, Trainee(records, keystream, mechanism, given.batch_size, given.steps), round=1)
        return model.eval()


@dataclass(frozen=True)
class WithPrivacy:
    """Trains a task's model by `fedprivacy.train`, with the least noise that a budget allows.

    Attributes:
        task: model and loss.
        training: the settings.
        budget: epsilon and delta.
        clipping_norm: C, bound on the norm of a record's gradient.
    """

    task: Task
    training: Training
    budget: PrivacyBudget
    clipping_norm: float

    def __call__(self, records: Shard, seed: int) -> nn.Module:
        """A model that was trained on the records."""
        return self.trained(records, seed).model

    def trained(self, records: Shard, seed: int) -> Trained:
        """The model and what it cost; how many records there are is private."""
        given = self.training
        return train(
            new_model(self.task, seed),
            self.task.loss,
            records,
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            steps=given.steps,
            sampling_rate=given.sampling_rate,
            batch_size=given.batch_size,
            clipping_norm=self.clipping_norm,
            learning_rate=given.learning_rate,
            optimizer=given.optimizer,
            momentum=given.momentum,
            progress=False,
            seed=seed,
        )

    @cached_property
    def history(self) -> History:
        """What one training executes: the accountant's word, which limits every attack."""
        given, relation = self.training, NeighbouringRelation.ADD_OR_REMOVE_ONE
        noise = noise_multiplier(self.budget, given.sampling_rate, given.steps, relation)
        return {PoissonSampledGaussian(given.sampling_rate, noise, relation): given.steps}


def new_model(task: Task, seed: int) -> nn.Module:
    """A task's model with weights drawn from a seed; torch's own generator stays where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task.model()
