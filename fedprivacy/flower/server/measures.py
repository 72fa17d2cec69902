"""Measures of a round's model.

In a simulation each client's own model is measured on that client's held-out records. They are declared public, because
all shards belong to the person who runs the simulation. Nothing is charged, because no private record is read. In a
deployment clients measure their own records, which is charged (`local-evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fedprivacy.flower.kept import KeptModels
from fedprivacy.flower.server.checkpoint import flat
from fedprivacy.gradients import trainable_parameters
from fedprivacy.questions.standardise import Standardise
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.tasks import Shard, ShardSource
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.training.algorithms import Algorithm, text_of
from fedprivacy.training.evaluation import NoisySums, estimate_scores
from fedprivacy.training.local_round import personal_mask
from fedprivacy.values.metrics import Evaluation, HeldOut


@dataclass(frozen=True)
class ClientModels:
    """The models that simulated clients use after a round.

    Attributes:
        plan: the run's plan.
        kept: the vectors that its clients keep.
        number: the round's number.
        arrays: the global model.
    """

    plan: TrainingPlan
    kept: KeptModels
    number: int
    arrays: ArrayRecord

    def of(self, client_id: str) -> Tensor:
        """A client's model, flat, shape [d]."""
        shared, mask = self._shared
        return self._algorithm.model(shared, self._kept.get(client_id, shared), mask)

    def personal(self) -> dict[str, Tensor]:
        """The models of clients that have one of their own, flat, by client_id."""
        return {client_id: self.of(client_id) for client_id in self._kept} if self._algorithm.personal else {}

    @property
    def _algorithm(self) -> Algorithm:
        return self.plan.config.algorithm_in(self.number)

    @property
    def _kept(self) -> Mapping[str, Tensor]:
        return self.kept.own if self.kept.algorithm == text_of(self._algorithm) else {}

    @cached_property
    def _shared(self) -> tuple[Tensor, Tensor | None]:
        """The global model, flat, and the mask of parameters in personal layers."""
        model = self.plan.task.model()
        names = tuple(trainable_parameters(model))
        return flat(self.arrays, names).float(), personal_mask(self._algorithm, model)


@dataclass(frozen=True)
class Measures:
    """Measures of a round's model: on public records, on clients' held-out ones, and in clients' own evaluations.

    Attributes:
        plan: the run's plan.
        kept: the vectors that clients simulated in this process keep; None: no client is.
    """

    plan: TrainingPlan
    kept: KeptModels | None

    def model(self, arrays: ArrayRecord, standardise: Standardise | None) -> nn.Module:
        """A model of the task with these parameters, for evaluation.

        Args:
            arrays: the global model.
            standardise: the standardisation of inputs before the model; None: none.
        """
        model = self.plan.task.model()
        model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        return (model if standardise is None else nn.Sequential(standardise, model)).eval()

    def public(self, arrays: ArrayRecord, standardise: Standardise | None) -> MetricRecord:
        """The task's metrics on public records. Raises `TaskError` if its `evaluate` fails."""
        return MetricRecord(dict(self.plan.task.evaluate(self.model(arrays, standardise))))

    def local(self, released: Mapping[str, NoisySums]) -> tuple[dict[str, Evaluation], dict[str, float]]:
        """Estimates from local evaluations: one by client_id, and one of all clients together, as metrics."""
        if not released:
            return {}, {}
        scores = self.plan.task.scores()
        by_client = {client_id: estimate_scores(scores, [sums]) for client_id, sums in released.items()}
        return by_client, estimate_scores(scores, list(released.values())).metrics

    def held_out(self, number: int, arrays: ArrayRecord, standardise: Standardise | None) -> dict[str, HeldOut]:
        """Each simulated client's scores under the model that it uses after a round, by client_id.

        They are measured every `held-out-evaluation` rounds, and after the last; empty if not due in this round.

        Raises:
            TaskError: the task has no held-out records for a client, or its scores fail.
        """
        config = self.plan.config
        if self.kept is None or number == 0 or not self.plan.task.offers("held_out"):
            return {}
        every = config.held_out_evaluation
        due = number == config.rounds or (every > 0 and number % every == 0)
        return self._held_out(ClientModels(self.plan, self.kept, number, arrays), standardise) if due else {}

    def _held_out(self, own: ClientModels, standardise: Standardise | None) -> dict[str, HeldOut]:
        task, clients = self.plan.task, self.plan.config.clients
        model = task.model().eval()
        found = {}
        for part in range(clients):
            records = task.held_out(ShardSource(partition_id=part, num_partitions=clients))
            client_id = simulated_client_id(part, clients)
            vector_to_parameters(own.of(client_id), [p for p in model.parameters() if p.requires_grad])
            found[client_id] = self._score(model if standardise is None else nn.Sequential(standardise, model), records)
        return found

    @torch.no_grad()
    def _score(self, model: nn.Module, records: Shard) -> HeldOut:
        if not len(records.inputs):
            return HeldOut(0, {})
        outputs = model(records.inputs)
        each = {n: s.measure(outputs, records.targets).double() for n, s in self.plan.task.scores().items()}
        means = {name: float(values.mean()) for name, values in each.items()}
        return HeldOut(len(records.inputs), means, self.plan.task.held_out_metrics(model, records))
