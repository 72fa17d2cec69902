"""DP-SGD for a cohort: many clients from one starting point, stacked where their models are small.

Each client releases what it would release by `fedprivacy.training.dpsgd`: the same samples, the same noise to the last
bit, and sums of the same gradients. A stack computes these by other matrix products, so a sum may differ in the last
bits of float32 before it is rounded to the lattice, and a released coordinate then by one step of the lattice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.gradients.stacked import Pool, Stack, StackedClipped
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum, poisson_samples, release_by_row
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.adaptive import QuantileClipping
from fedprivacy.training.algorithms import FEDAVG, Algorithm
from fedprivacy.training.augment import Views
from fedprivacy.training.descent import Descent
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.local_round import Kept, stacked_round
from fedprivacy.training.noisy_mean import NoisyMean
from fedprivacy.training.optimizers import Optimizer

_MOST_TOGETHER = 256
"""Maximum number of clients in a stack; more are no faster."""

_MOST_BYTES = 64 * 2**20
"""Maximum number of bytes of a stack's inputs, by public shard sizes: they fix how updates are added up."""


class Member(Protocol):
    """The public facts of a cohort's client that decide with which others it is stacked."""

    @property
    def shard(self) -> Shard: ...  # noqa: D102
    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def sampling_rate(self) -> float: ...  # noqa: D102
    @property
    def expected_batch_size(self) -> float: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Trainee:
    """One client of a cohort with its mechanism, and the vector that it kept of its last round."""

    shard: Shard
    keystream: Keystream
    mechanism: SampledGaussianSum
    expected_batch_size: float
    steps: int
    own: Tensor | None = None

    @property
    def sampling_rate(self) -> float:
        """Probability with which each record joins a step."""
        return self.mechanism.event.sampling_rate


@dataclass(frozen=True, slots=True)
class Portion:
    """Releases of some clients of a cohort: see `fedprivacy.training.dpsgd.PrivateUpdate`.

    Attributes:
        places: indices of the clients among the trainees.
        parameters: trained parameters of each client, flat, as they are sent, shape [clients, d].
        clipping_norms: clipping norm of each client's next step; infinite where nothing is clipped.
        kept: vector that each client keeps for its next round, shape [clients, d]; None: nothing.
        problem: the error if these clients release nothing (`parameters` are then not theirs); None: they release.
    """

    places: list[int]
    parameters: Tensor
    clipping_norms: list[float]
    kept: Tensor | None = None
    problem: Exception | None = None


@dataclass(frozen=True, slots=True)
class CohortTraining:
    """Training of clients from the engine's present parameters.

    Formal guarantee: each client's part of a `Portion` is a post-processing of its own steps' releases, as in `DPSGD`;
    no other client's records enter into it (`fedprivacy.gradients.stacked`).

    Attributes:
        engine: gradient engine; its model is the starting point, and is restored afterwards.
        optimizer, proximal_mu, algorithm: see `DPSGD`.
        adaptive, views: see `NoisyMean`.
        control: vector that the server sends besides the model, shape [d]; None: nothing.
    """

    engine: GradientEngine
    optimizer: Optimizer
    proximal_mu: float = 0.0
    adaptive: QuantileClipping | None = None
    algorithm: Algorithm = FEDAVG
    control: Tensor | None = None
    views: Views | None = None

    def train(self, trainees: Sequence[Trainee], round: int) -> Iterator[Portion]:
        """Train every client and yield portions, in an order that public numbers fix."""
        alone: list[int] = []
        for places in alike(trainees):
            members = [trainees[place] for place in places]
            kinds = members[0].shard.inputs, members[0].shard.targets
            stack = self.engine.stack(*kinds) if self.views is None else None
            if stack is None:
                alone += places
            else:
                yield tried(self.engine.model, partial(self._stacked, stack, places, members, round), places)
        for place in sorted(alone):  # large models: in this order, their sum keeps the fewest vectors
            yield tried(self.engine.model, partial(self._alone, place, trainees[place], round), [place])

    def _alone(self, place: int, one: Trainee, round: int) -> Portion:
        gradient = NoisyMean(one.mechanism, one.expected_batch_size, self.adaptive, self.views)
        training = DPSGD(gradient, self.optimizer, self.proximal_mu, self.algorithm)
        before = Kept(one.own, self.control)
        update = training.train(
            self.engine, one.shard, steps=one.steps, round=round, keystream=one.keystream, before=before
        )
        flat = torch.cat([values.flatten() for values in update.parameters.values()])
        kept = None if update.kept is None else update.kept.unsqueeze(0)
        return Portion([place], flat.unsqueeze(0), [update.clipping_norm], kept)

    def _stacked(self, stack: Stack, places: list[int], trainees: Sequence[Trainee], round: int) -> Portion:
        """Train all clients step by step; they have the same number of steps."""
        pool = Pool.of([(one.shard.inputs, one.shard.targets) for one in trainees])
        divisors = torch.tensor([[one.expected_batch_size] for one in trainees], dtype=torch.float32)
        norms = np.array([one.mechanism.clipping_norm for one in trainees])

        def noisy_means(step: int, positions: Tensor) -> Tensor:
            nonlocal norms
            released, norms = self._released(stack, pool, positions, trainees, norms, Position(round, step))
            return released.div_(divisors)

        steps = trainees[0].steps
        descent = Descent(noisy_means, self.optimizer, self.proximal_mu, steps)
        own = [one.own for one in trainees]
        clients = stacked_round(self.algorithm, self.engine.model, own, self.control, descent)
        update = self.algorithm.train(clients)
        return Portion(places, update.sent, norms.tolist(), update.kept)

    def _released(  # noqa: PLR0917 - what one step needs
        self,
        stack: Stack,
        pool: Pool,
        positions: Tensor,
        trainees: Sequence[Trainee],
        norms: NDArray[np.float64],
        position: Position,
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Release each client's mechanism once: sums [clients, d], and each client's next clipping norm."""
        keystreams = [one.keystream for one in trainees]
        rates = np.array([one.sampling_rate for one in trainees])
        batches = poisson_samples(rates, [len(one.shard.inputs) for one in trainees], keystreams, position)
        clipped = stack.clip(positions, pool, batches, norms)
        mechanisms, totals = [one.mechanism for one in trainees], clipped.totals
        if self.adaptive is None:
            return release_by_row(mechanisms, totals, keystreams, position), norms
        sensitivities = [self.adaptive.sensitivity(norm) for norm in norms.tolist()]
        joint = [replace(m, clipping_norm=norm) for m, norm in zip(mechanisms, sensitivities, strict=True)]
        released = release_by_row(joint, _joined(clipped, batches, norms, self.adaptive), keystreams, position)
        counts = released[:, -1].tolist()
        moved = [
            self.adaptive.next_norm(count, norm, one.expected_batch_size)
            for count, norm, one in zip(counts, norms.tolist(), trainees, strict=True)
        ]
        return released[:, :-1].contiguous(), np.array(moved)


def _joined(
    clipped: StackedClipped,
    batches: Sequence[NDArray[np.int64]],
    norms: NDArray[np.float64],
    adaptive: QuantileClipping,
) -> Tensor:
    """Append each client's centred count to its clipped sum as one more coordinate, [clients, d + 1]."""
    owners = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    squared = clipped.squared_norms.numpy()
    finite, within = ~np.isnan(squared), squared <= norms[owners] ** 2
    counts = (np.bincount(owners[which], minlength=len(batches)).tolist() for which in (within, finite))
    centred = list(map(adaptive.centred, *counts, norms.tolist()))
    return torch.cat([clipped.totals, torch.tensor(centred, dtype=torch.float64).unsqueeze(1)], 1)


def tried(model: nn.Module, train: Callable[[], Portion], places: list[int]) -> Portion:
    """Train these clients; an error becomes their portion's problem and nobody else's. The model is restored
    afterwards.
    """
    start, own = flat_parameters(model), [p for p in model.parameters() if p.requires_grad]
    try:
        return train()
    except Exception as problem:
        return Portion(places, start.expand(len(places), -1), [math.nan] * len(places), problem=problem)
    finally:
        torch.nn.utils.vector_to_parameters(start, own)


def alike(trainees: Sequence[Member]) -> Iterator[list[int]]:
    """Group the places of clients that can be stacked: same number of steps, and records of one kind."""
    kinds: dict[object, list[int]] = {}
    for place, one in enumerate(trainees):
        rows = (one.shard.inputs, one.shard.targets)
        kinds.setdefault((one.steps, *((t.shape[1:], t.dtype, t.device) for t in rows)), []).append(place)
    for places in kinds.values():
        yield from _portions(trainees, places)


def _portions(trainees: Sequence[Member], places: Sequence[int]) -> Iterator[list[int]]:
    """Split the places into portions, limited in clients and in bytes."""
    portion: list[int] = []
    size = 0.0
    for place in places:
        nbytes = _public_bytes(trainees[place])
        if portion and (len(portion) == _MOST_TOGETHER or size + nbytes > _MOST_BYTES):
            yield portion
            portion, size = [], 0.0
        portion.append(place)
        size += nbytes
    if portion:
        yield portion


def _public_bytes(one: Member) -> float:
    """Number of bytes that a shard's inputs take if it has its public number of records."""
    inputs = one.shard.inputs
    records = one.expected_batch_size / one.sampling_rate
    return records * math.prod(inputs.shape[1:]) * inputs.element_size()
