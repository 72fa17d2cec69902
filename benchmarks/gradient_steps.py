"""One training step without privacy, and one with ours. Those of Opacus are in `benchmarks.peers_opacus`."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from benchmarks.gradient_models import CLIPPING_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Problem
from benchmarks.measure import Mark, Step
from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.gradients.layout import cut
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.values.events import PoissonSampledGaussian


def nonprivate_step(problem: Problem) -> Step:
    """The step of someone who needs no privacy."""
    model = problem.build()
    optimizer = optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step(mark: Mark) -> None:
        optimizer.zero_grad()
        cross_entropy(model(problem.inputs), problem.targets).backward()
        mark()
        optimizer.step()

    return step


class OurStep:
    """A local step of `fedprivacy.training.dpsgd`, with the batch given instead of sampled."""

    def __init__(self, problem: Problem, max_memory: int | None = None, autocast: torch.dtype | None = None) -> None:
        """Take model and batch, the bytes that the engine may use (None: its own choice), and its autocast."""
        self._problem, model = problem, problem.build()
        self._position = flat_parameters(model)
        nn.utils.vector_to_parameters(self._position, model.parameters())  # from here on views of one vector
        loss = partial(cross_entropy, reduction="none")
        self._engine = GradientEngine(model, loss, max_memory=max_memory, autocast=autocast)
        self._mechanism = SampledGaussianSum(PoissonSampledGaussian(1.0, NOISE_MULTIPLIER), CLIPPING_NORM)
        self._keystream, self._count = Keystream.secret(), itertools.count(1)

    @property
    def method(self) -> str:
        """How the engine computes gradients."""
        return self._engine.method

    @property
    def rows(self) -> int:
        """Number of rows that a step computes, those that fill parts up included; known after the first step."""
        return sum(part.size for part in cut(len(self._problem.inputs), self._engine.sizes, self._engine.turn))

    def __call__(self, mark: Mark) -> None:
        """Take one step."""
        inputs, targets = self._problem.inputs, self._problem.targets

        def clipped_sum(_sample: object, clipping_norm: float) -> Tensor:
            total = self._engine.clip(inputs, targets, clipping_norm, usual=len(inputs)).total
            mark()
            return total

        noisy_sum = self._mechanism.release(clipped_sum, 0, self._keystream, Position(1, next(self._count)))
        self._position.sub_(noisy_sum.to(self._position.dtype), alpha=LEARNING_RATE / len(inputs))
