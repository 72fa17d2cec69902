"""A client's steps as the server sees them: one release after another, of the training that is audited.

Each step is a round of its own, at the same parameters, so that a reading is of one release. The server may grant that,
and the accountant charges it like any other step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.accounting import pld
from fedprivacy.audit.real_client import AskedClient, gain
from fedprivacy.flower.wire.messages import Grant
from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks import Shard, Task
from fedprivacy.tasks.identity import dataset_id
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.unit import RECORD, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedTraining:
    """Training that a client is granted, and the privacy that is claimed for it.

    Attributes:
        event: mechanism of each step.
        steps: T, over all rounds.
        delta: of the claim.
        clipping_norm: C.
        clipping: how a record's gradient is bounded by C, as in a run's configuration.
        expected_batch_size: divisor of the noisy sums.
        learning_rate: of the local steps, by plain SGD: another optimiser only post-processes what SGD shows.
        weight_decay: of the local steps.
        unit: of privacy.
        autocast: the client's type of activations, as in a run's configuration.
    """

    event: PoissonSampledGaussian
    steps: int
    delta: float
    clipping_norm: float
    clipping: str = "flat"
    expected_batch_size: float = 1.0
    learning_rate: float = 1.0
    weight_decay: float = 0.0
    unit: Unit = RECORD
    autocast: str = "float32"

    @property
    def epsilon(self) -> float:
        """The epsilon that the accountant states for it at `delta`, an upper bound."""
        return pld.epsilon({self.event: self.steps}, self.delta)

    def granted(self, usual: Grant) -> Grant:
        """A grant for one of its steps, in the first round."""
        return replace(
            usual,
            sampling_rate=self.event.sampling_rate,
            noise_multiplier=self.event.noise_multiplier,
            relation=self.event.relation,
            clipping_norm=self.clipping_norm,
            clipping=self.clipping,
            expected_batch_size=self.expected_batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )


class ObservedClient:
    """One client of a task whose releases are read, and whose key the auditor chose.

    Its learning rate is raised until rounding of the parameters, which may be large, can hide no noise.

    Args:
        task: model and loss; its relation is the training's.
        shard: its records, at least one.
        training: what it is granted.
        parameters: the global model of every step, by name.
        seed: of its randomness.
        device: where it trains, as in a run's configuration.
    """

    def __init__(
        self,
        task: Task,
        shard: Shard,
        training: AuditedTraining,
        parameters: Mapping[str, NDArray[Any]],
        *,
        seed: int,
        device: str = "cpu",
    ) -> None:
        self._client = AskedClient(task, shard, seed=seed, device=device, autocast=training.autocast)
        grant = training.granted(self._client.usual_grant())
        move = grant.learning_rate * grant.clipping_norm / grant.expected_batch_size
        self._grant = replace(grant, learning_rate=grant.learning_rate * gain(parameters, move))
        self._parameters = parameters
        self._position = np.concatenate([values.ravel() for values in parameters.values()]).astype(np.float64)
        self._dataset = dataset_id(self._client.task, self._grant.client_id)
        self._seed, self._records = seed, len(shard.inputs)

    def release(self, step: int) -> NDArray[np.float64]:
        """Return the mechanism's release in a step, counted from 1: a noisy sum, in clipping norms, shape [d].

        Raises:
            RuntimeError: the client sent no update.
        """
        grant = replace(self._grant, round=step)
        gradient = -self._client.answer(grant, self._parameters).flat / grant.learning_rate
        gradient -= grant.weight_decay * self._position
        return np.asarray(gradient * (grant.expected_batch_size / grant.clipping_norm))

    def joined(self, step: int) -> NDArray[np.intp]:
        """Indices of the records that joined a step, as its sampler draws them from the auditor's key."""
        grant = self._grant
        keystream = Keystream.from_seed(self._seed, self._dataset, grant.earlier_runs, grant.attempt)
        return poisson_sample(grant.sampling_rate, self._records, keystream, Position(step, 1))
