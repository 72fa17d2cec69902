"""DP-SGD for a cohort: many clients from one starting point, stacked where their models are small.

Each client releases what it would release by `fedprivacy.training.dpsgd`: the same samples, the same noise to the last
bit, and sums of the same gradients. A stack computes these by other matrix products, so a sum may differ in the last
bits of float32 before it is rounded to the lattice, and a released coordinate then by one step of the lattice.

Their updates are added up pairwise, in any order: only the clients' ranks decide the sum's bits. Floating-point
addition is not associative, so a sum over several processes would depend on which process adds what. Here the tree is
fixed: rank 0 is added to rank 1, and 2 to 3, then the first pair to the second, and so on. Each process adds up the
branches for which it has all vectors, and the branches of several processes are joined. The sum is also more accurate:
its error grows with the logarithm of the number of vectors (Higham 2002, section 4.2).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.gradients.products import on_gpu
from fedprivacy.gradients.stacked import Pool, Stack, StackedClipped
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum, poisson_samples, release_by_row
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks.task import Shard
from fedprivacy.training.adaptive import QuantileClipping
from fedprivacy.training.algorithms import FEDAVG, Algorithm
from fedprivacy.training.batches import Views
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.training.local_round import Kept, LocalSteps
from fedprivacy.training.optimizers import Optimizer

_MOST_TOGETHER, _MOST_ON_GPU = 256, 1024
"""Maximum numbers of clients in a stack on a CPU, where more are no faster, and on a GPU."""

_MOST_BYTES, _BYTES_ON_GPU = 64 * 2**20, 2**32
"""Maximum numbers of bytes of a stack's inputs, by public shard sizes: they fix how updates are added up. On a GPU the
clients' vectors count, too.
"""

_BYTES_OF_A_PARAMETER = 64
"""Number of bytes that a client's parameter takes in its vectors: position, matrix, sum, release, optimiser."""

_Branch = tuple[int, int]
"""(l, i): the sum of ranks i 2^l to (i + 1) 2^l - 1."""


class StepMechanism(Protocol):
    """The mechanism of a client's steps: the records that join, and the bound on the gradient of each."""

    @property
    def sampling_rate(self) -> float: ...
    @property
    def clipping_norm(self) -> float: ...


AnyMechanism = TypeVar("AnyMechanism", bound=StepMechanism)


@dataclass(frozen=True, slots=True)
class Trainee(Generic[AnyMechanism]):
    """One client of a cohort with its mechanism, and the vector that it kept of its last round."""

    shard: Shard
    keystream: Keystream
    mechanism: AnyMechanism
    expected_batch_size: float
    steps: int
    own: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StackedClients(Generic[AnyMechanism]):
    """The clients of a stack, with all their records."""

    stack: Stack
    pool: Pool
    trainees: Sequence[Trainee[AnyMechanism]]

    @property
    def keystreams(self) -> list[Keystream]:
        """Randomness of each client."""
        return [one.keystream for one in self.trainees]

    def clip(
        self, positions: Tensor, norms: NDArray[np.float64], position: Position
    ) -> tuple[StackedClipped, list[NDArray[np.intp]]]:
        """Draw each client's sample and sum its clipped gradients; see `Stack.clip`. The samples are returned, too."""
        rates = np.array([one.mechanism.sampling_rate for one in self.trainees])
        sizes = [len(one.shard.inputs) for one in self.trainees]
        batches = poisson_samples(rates, sizes, self.keystreams, position)
        return self.stack.clip(positions, self.pool, batches, norms), batches


@dataclass(frozen=True, slots=True)
class Portion:
    """Releases of some clients of a cohort: see `fedprivacy.training.dpsgd.PrivateUpdate`.

    Attributes:
        places: indices of the clients among the trainees.
        parameters: trained parameters of each client, flat, as they are sent, shape [clients, d].
        clipping_norms: clipping norm of each client's next step; infinite without clipping.
        kept: vector that each client keeps for its next round, shape [clients, d]; None: nothing.
        problem: the error if these clients release nothing (`parameters` are then not theirs); None: they release.
    """

    places: list[int]
    parameters: Tensor
    clipping_norms: list[float]
    kept: Tensor | None = None
    problem: Exception | None = None


@dataclass(frozen=True, slots=True)
class CohortLoop(ABC, Generic[AnyMechanism]):
    """Loop that trains clients from the engine's present parameters, with the mechanism of a subclass.

    Attributes:
        engine: gradient engine; its model is the starting point, and is restored afterwards.
        optimizer, proximal_mu, algorithm: see `LocalSteps`.
        control: vector that the server sends besides the model, shape [d]; None: nothing.
        views: see `NoisyMean`.
    """

    engine: GradientEngine
    optimizer: Optimizer
    proximal_mu: float = 0.0
    algorithm: Algorithm = FEDAVG
    control: Tensor | None = None
    views: Views | None = None

    def train(self, trainees: Sequence[Trainee[AnyMechanism]], round: int) -> Iterator[Portion]:
        """Train every client and yield portions, in an order that public numbers fix."""
        alone: list[int] = []
        for places in alike(trainees, sum(p.numel() for p in self.engine.model.parameters() if p.requires_grad)):
            members = [trainees[place] for place in places]
            kinds = members[0].shard.inputs, members[0].shard.targets
            stack = self.engine.stack(*kinds) if self.views is None else None
            if stack is None:
                alone += places
            else:
                yield try_portion(self.engine.model, partial(self._train_stack, stack, places, members, round), places)
        for place in sorted(alone):  # large models: in this order, their sum keeps the fewest vectors
            yield try_portion(self.engine.model, partial(self.alone, place, trainees[place], round), [place])

    @abstractmethod
    def alone(self, place: int, one: Trainee[AnyMechanism], round: int) -> Portion:
        """Train one client by itself."""

    def _train_stack(
        self, stack: Stack, places: list[int], trainees: Sequence[Trainee[AnyMechanism]], round: int
    ) -> Portion:
        """Train all clients step by step; they have the same number of steps."""
        clients = StackedClients(stack, Pool.of([(one.shard.inputs, one.shard.targets) for one in trainees]), trainees)
        norms = np.array([one.mechanism.clipping_norm for one in trainees])

        def mean_gradients(step: int, positions: Tensor) -> Tensor:
            nonlocal norms
            means, norms = self.mean_gradients(clients, positions, norms, Position(round, step))
            return means

        local, own = LocalSteps(self.optimizer, self.proximal_mu, self.algorithm), [one.own for one in trainees]
        update = local.take_stacked(self.engine.model, mean_gradients, trainees[0].steps, own, self.control)
        return Portion(places, update.sent, norms.tolist(), update.kept)

    @abstractmethod
    def mean_gradients(
        self,
        clients: StackedClients[AnyMechanism],
        positions: Tensor,
        norms: NDArray[np.float64],
        position: Position,
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Run each client's mechanism once.

        Args:
            clients: the clients of the stack.
            positions: parameters of each, shape [clients, d].
            norms: clipping norm of each, shape [clients].
            position: round and step.

        Returns:
            The mean gradients, shape [clients, d], float32, and the clipping norms of the next step.
        """


@dataclass(frozen=True, slots=True)
class CohortTraining(CohortLoop[SampledGaussianSum]):
    """DP-SGD of a cohort.

    Formal guarantee: each client's part of a `Portion` is a post-processing of its own steps' releases, as in `DPSGD`;
    no other client's records enter into it (`fedprivacy.gradients.stacked`).

    Attributes:
        adaptive: see `NoisyMean`.
    """

    adaptive: QuantileClipping | None = None

    def alone(self, place: int, one: Trainee[SampledGaussianSum], round: int) -> Portion:
        """Train one client by `DPSGD`."""
        gradient = NoisyMean(one.mechanism, one.expected_batch_size, self.adaptive, self.views)
        training = DPSGD(gradient, self.optimizer, self.proximal_mu, self.algorithm)
        before = Kept(one.own, self.control)
        update = training.train(
            self.engine, one.shard, steps=one.steps, round=round, keystream=one.keystream, before=before
        )
        flat = torch.cat([values.flatten() for values in update.parameters.values()])
        kept = None if update.kept is None else update.kept.unsqueeze(0)
        return Portion([place], flat.unsqueeze(0), [update.clipping_norm], kept)

    def mean_gradients(
        self,
        clients: StackedClients[SampledGaussianSum],
        positions: Tensor,
        norms: NDArray[np.float64],
        position: Position,
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Release each client's mechanism once."""
        clipped, batches = clients.clip(positions, norms, position)
        trainees, keystreams = clients.trainees, clients.keystreams
        mechanisms, totals = [one.mechanism for one in trainees], clipped.totals
        divisors = totals.new_tensor([[one.expected_batch_size] for one in trainees], dtype=torch.float32)
        if self.adaptive is None:
            return release_by_row(mechanisms, totals, keystreams, position).div_(divisors), norms
        sensitivities = [self.adaptive.sensitivity(norm) for norm in norms.tolist()]
        joint = [replace(m, clipping_norm=norm) for m, norm in zip(mechanisms, sensitivities, strict=True)]
        released = release_by_row(joint, _append_counts(clipped, batches, norms, self.adaptive), keystreams, position)
        counts = released[:, -1].tolist()
        moved = [
            self.adaptive.next_norm(count, norm, one.expected_batch_size)
            for count, norm, one in zip(counts, norms.tolist(), trainees, strict=True)
        ]
        return released[:, :-1].contiguous().div_(divisors), np.array(moved)


def _append_counts(
    clipped: StackedClipped,
    batches: Sequence[NDArray[np.int64]],
    norms: NDArray[np.float64],
    adaptive: QuantileClipping,
) -> Tensor:
    """Append each client's centred count to its clipped sum as one more coordinate, [clients, d + 1]."""
    owners = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    squared = clipped.squared_norms.cpu().numpy()
    finite, within = ~np.isnan(squared), squared <= norms[owners] ** 2
    counts = (np.bincount(owners[which], minlength=len(batches)).tolist() for which in (within, finite))
    centred = list(map(adaptive.centre_count, *counts, norms.tolist()))
    return torch.cat([clipped.totals, clipped.totals.new_tensor(centred).unsqueeze(1)], 1)


def try_portion(model: nn.Module, train: Callable[[], Portion], places: list[int]) -> Portion:
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


def alike(trainees: Sequence[Trainee[AnyMechanism]], parameters: int) -> Iterator[list[int]]:
    """Group the places of clients that can be stacked: same number of steps, and records of one kind."""
    kinds: dict[object, list[int]] = {}
    for place, one in enumerate(trainees):
        rows = (one.shard.inputs, one.shard.targets)
        kinds.setdefault((one.steps, *((t.shape[1:], t.dtype, t.device) for t in rows)), []).append(place)
    for places in kinds.values():
        gpu = on_gpu(trainees[places[0]].shard.inputs)
        limits = (_MOST_ON_GPU, _BYTES_ON_GPU) if gpu else (_MOST_TOGETHER, _MOST_BYTES)
        yield from _portions(trainees, places, gpu * _BYTES_OF_A_PARAMETER * parameters, *limits)


def _portions(
    trainees: Sequence[Trainee[AnyMechanism]], places: Sequence[int], each: int, most: int, most_bytes: int
) -> Iterator[list[int]]:
    """Split the places into portions, limited in clients and in bytes, of which each client takes some besides."""
    portion: list[int] = []
    size = 0.0
    for place in places:
        nbytes = each + _public_bytes(trainees[place])
        if portion and (len(portion) == most or size + nbytes > most_bytes):
            yield portion
            portion, size = [], 0.0
        portion.append(place)
        size += nbytes
    if portion:
        yield portion


def _public_bytes(one: Trainee[AnyMechanism]) -> float:
    """Number of bytes that a shard's inputs take if it has its public number of records."""
    inputs = one.shard.inputs
    records = one.expected_batch_size / one.mechanism.sampling_rate
    return records * math.prod(inputs.shape[1:]) * inputs.element_size()


class PairwiseSum:
    """A sum of vectors that arrive in any order. For n consecutive vectors, at most 2 log2(n) partial sums are kept."""

    def __init__(self) -> None:
        self._branches: dict[_Branch, Tensor | None] = {}

    def add(self, ranks: Sequence[int], rows: Tensor) -> None:
        """Add vectors, each rank once.

        Args:
            ranks: ranks of the vectors, counted from 0, ascending.
            rows: vectors, shape [ranks, d]; the sum takes over their memory and writes into it.
        """
        if len(ranks) == 1:
            self._grow((0, ranks[0]), rows[0])
            return
        gaps = (np.flatnonzero(np.diff(ranks) != 1) + 1).tolist()
        for start, stop in pairwise([0, *gaps, len(ranks)]):
            self._add_run(ranks[start], rows[start:stop])

    def skip(self, rank: int) -> None:
        """Note that there is no vector of this rank."""
        self._grow((0, rank), None)

    def join(self, other: PairwiseSum) -> None:
        """Add the partial sums of another sum, which is not used any more."""
        for branch, vector in other._branches.items():
            self._grow(branch, vector)

    def move(self, device: str) -> None:
        """Move the partial sums to a device; they add up to the same bits on any."""
        self._branches = {branch: None if v is None else v.to(device) for branch, v in self._branches.items()}

    @property
    def total(self) -> Tensor | None:
        """The sum, once every rank below some number was added or skipped; None: there was no vector."""
        whole = (self._branches[branch] for branch in sorted(self._branches))
        return reduce(_plus, whole, None)

    def _add_run(self, first: int, rows: Tensor) -> None:
        """Add consecutive ranks, all branches of a level at once."""
        level = 0
        while len(rows):
            if first % 2:
                self._grow((level, first), rows[0].clone())  # a copy, so that the other rows are freed
                first, rows = first + 1, rows[1:]
            if len(rows) % 2:
                self._grow((level, first + len(rows) - 1), rows[-1].clone())
                rows = rows[:-1]
            level, first, rows = level + 1, first // 2, rows[0::2] + rows[1::2]

    def _grow(self, branch: _Branch, vector: Tensor | None) -> None:
        """Add a branch to its sibling, and so on, as long as the sibling is there. (Addition is commutative, to the
        bit.)
        """
        level, place = branch
        while (sibling := (level, place ^ 1)) in self._branches:
            vector = _plus(vector, self._branches.pop(sibling), Tensor.add_)
            level, place = level + 1, place // 2
        self._branches[level, place] = vector


def _plus(
    one: Tensor | None, other: Tensor | None, add: Callable[[Tensor, Tensor], Tensor] = Tensor.add
) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return add(one, other.to(one.device))
