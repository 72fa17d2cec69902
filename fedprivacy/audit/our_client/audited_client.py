"""The subject of an audit: a task, the settings of its run, and the one client that is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.audit.real_client import USUAL, AskedClient, RealClient, SentUpdate, gain, new_parameters
from fedprivacy.audit.subject import Effort
from fedprivacy.flower.wire.messages import Grant, spending
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.tasks import Shard, ShardSource, Task
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.training.adaptive import QuantileClipping

Parameters = Mapping[str, NDArray[Any]]
"""A global model, as a server sends it."""

SILENT = 1e-6
"""A noise multiplier that leaves a release readable."""

_UNLIMITED = 1e4
"""A divisor, for a noise multiplier of one, by which the noisy count of adaptive clipping is never limited."""

_LAST_ROUND = 10**6
"""Largest round that is asked for, so that changes late in a long run are seen."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Privacy cost that is claimed for a client's training.

    Attributes:
        epsilon, delta: the cost.
        rounds: of the grant's training steps.
        evaluations: local evaluations in those rounds.
    """

    epsilon: float
    delta: float
    rounds: int
    evaluations: int = 0


@dataclass(frozen=True, kw_only=True)
class Audited:
    """A task with the settings of its run.

    Attributes:
        task: model, loss and what it makes public.
        shard: records of one client, real or of their kind. What leaves of them stays in this process.
        grant: what a server sends in a round: clipping, sampling rate, noise, steps, optimiser.
        claim: what is said that the run costs.
        device, autocast: where clients train, and their type of activations, as in a run's configuration.
        effort: how long the audit may take.
        seed: of everything that is drawn, the clients' randomness too.
        confidential: the records are a data owner's own: no number that is computed from them is told.
    """

    task: OpenedTask
    shard: Shard
    grant: Grant
    claim: Claim
    device: str = "cpu"
    autocast: str = "float32"
    effort: Effort = Effort.QUICK
    seed: int = 0
    confidential: bool = False

    @classmethod
    def of(
        cls, plan: TrainingPlan, shard: Shard | None = None, *, effort: Effort = Effort.QUICK, seed: int = 0
    ) -> Self:
        """Return what a planned run will ask of its first client, whose records are used unless others are given."""
        config, schedule = plan.config, plan.config.schedule
        if shard is None:
            shard = plan.task.shard(ShardSource(partition_id=0, num_partitions=config.clients))
        client_id = simulated_client_id(0, config.clients)
        event, allowance = plan.event(len(shard), client_id), plan.allowance(client_id)
        steps = min(plan.limit({}, allowance).quota({}, event), plan.total_steps)
        asked, unit = max(min(schedule.steps_in(schedule.local_evaluation), steps), 1), str(plan.unit)
        grant = replace(
            USUAL,
            **spending(USUAL.charged_as, client_id, asked, event, unit=unit, clipping_norm=config.clipping_norm),
            clipping=config.clipping,
            expected_batch_size=event.sampling_rate * plan.shard_size(len(shard)),
            optimizer=config.optimizer,
            learning_rate=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            augmentation_multiplicity=config.augmentation_multiplicity,
            local_evaluation=schedule.local_evaluation > 0 and steps > schedule.local_steps,
        )
        rounds = schedule.rounds_within(steps)
        evaluations = schedule.steps_until(rounds) - rounds * schedule.local_steps
        claim = Claim(float(plan.epsilon_by_round(event, {}, allowance)[-1]), config.delta, rounds, evaluations)
        return cls(
            task=plan.task,
            shard=shard,
            grant=grant,
            claim=claim,
            device=config.device,
            autocast=config.autocast,
            effort=effort,
            seed=seed,
        )

    @cached_property
    def client(self) -> AskedClient:
        """A seeded client of the task, without a record."""
        return self.client_of(self.task, without_records(self.shard))

    def client_of(self, task: Task, shard: Shard, *, secret: bool = False) -> AskedClient:
        """A new client of any task: nothing that was computed for another one is kept for it.

        Args:
            task: model, loss and what it makes public.
            shard: its records.
            secret: whether its randomness is unknown, as in a deployment, instead of seeded.
        """
        seed = None if secret else self.seed
        return AskedClient(task, shard, seed=seed, device=self.device, autocast=self.autocast)

    @cached_property
    def parameters(self) -> Parameters:
        """A new model's, always the same for one seed."""
        return new_parameters(self.task, self.seed)

    @property
    def sensitivity(self) -> float:
        """The most that one record may change a release by, the count of adaptive clipping included."""
        adaptive, norm = self.grant.adaptive, self.grant.clipping_norm
        return norm if adaptive is None else adaptive.sensitivity(norm)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in every coordinate of a released sum, as it is claimed."""
        return self.grant.noise_multiplier * self.sensitivity * (1.0 + ROUNDING_ALLOWANCE)

    def asking(self, **changed: Any) -> Grant:
        """The grant with other fields: one step unless `steps` is given, by an optimiser from which sums can be read.

        Clipping, sampling and noise stay the run's own; so does the divisor, but for adaptive clipping.
        """
        plain: dict[str, Any] = {"steps": 1, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
        plain["local_evaluation"] = False
        if self.grant.adaptive is not None:  # whose count is limited, beyond what the divisor allows
            plain["expected_batch_size"] = max(self.grant.expected_batch_size, _UNLIMITED * self.grant.noise_multiplier)
        return replace(self.grant, **plain | changed)

    def sums(
        self, client: RealClient, grant: Grant, parameters: Parameters, *, first: int = 1
    ) -> list[NDArray[np.float64]]:
        """The noisy sum that each step of a grant from `asking` released, from the first that is wanted on, [d] each.

        The same grant is asked with one step, two, and so on: what the last one added is its sum.
        """
        gain = self._gain(parameters)
        grant = replace(grant, learning_rate=grant.expected_batch_size * gain)
        asked = range(max(first - 1, 1), grant.steps + 1)
        moved = [client.answer(replace(grant, steps=number), parameters).flat for number in asked]
        if first == 1:
            moved.insert(0, np.zeros_like(moved[0]))
        return [-(now - before) / gain for before, now in pairwise(moved)]

    def sum(self, client: RealClient, grant: Grant, parameters: Parameters) -> NDArray[np.float64]:
        """The noisy sum of a grant's only step."""
        return self.answer(client, grant, parameters)[0]

    def answer(
        self, client: RealClient, grant: Grant, parameters: Parameters
    ) -> tuple[NDArray[np.float64], SentUpdate]:
        """The noisy sum of a grant's only step, and all of the answer."""
        gain = self._gain(parameters)
        grant = replace(grant, steps=1, learning_rate=grant.expected_batch_size * gain)
        answer = client.answer(grant, parameters)
        return -answer.flat / gain, answer

    def _gain(self, parameters: Parameters) -> float:
        """Return the factor on sums before they move the parameters, a power of two."""
        return gain(parameters, self.grant.clipping_norm)

    def generator(self, *purpose: int) -> torch.Generator:
        """Return the auditor's own random numbers for a purpose."""
        return torch.Generator().manual_seed(int(np.random.SeedSequence([self.seed, *purpose]).generate_state(1)[0]))

    def positions(self, count: int, first: int = 1) -> Iterator[dict[str, Any]]:
        """So many rounds, as fields of a grant: half of them one after the other, the others anywhere in a long run."""
        rng, far = np.random.default_rng([self.seed, first]), set[int]()
        begin, end = math.log(first + count), math.log(_LAST_ROUND)
        while len(far) < count // 2:
            far.add(round(math.exp(rng.uniform(begin, end))))
        return ({"round": number} for number in (*range(first, first + count - count // 2), *sorted(far)))


def without_records(shard: Shard) -> Shard:
    """No record of a shard's kind."""
    return shard.of_records(shard.inputs[:0], shard.targets[:0])


def count_weight(adaptive: QuantileClipping, clipping_norm: float) -> float:
    """Return the additional weight in the release of a record within the clipping norm, over one beyond it."""
    return 2.0 * math.sqrt(adaptive.sensitivity(clipping_norm) ** 2 - clipping_norm**2)


def noisy_count(adaptive: QuantileClipping, grant: Grant, next_norm: float) -> float:
    """The noisy count of adaptive clipping: the coordinate of the release that moved the norm of a grant's only step.

    It is read from where the norm has moved, as long as the move was not limited.
    """
    within = adaptive.quantile - math.log(next_norm / grant.clipping_norm) / adaptive.learning_rate
    return (within - 0.5) * count_weight(adaptive, grant.clipping_norm) * grant.expected_batch_size
