"""How each simulated client's model does on records of its own that are held out, and declared public.

A simulation alone has them: whoever runs it owns all shards. Nothing is charged, because no private record is read. In
a deployment clients measure their own records, which is charged (`local-evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fedprivacy._support.spans import spanned
from fedprivacy.flower.kept import KeptModels
from fedprivacy.flower.server.control import flat
from fedprivacy.gradients import trainable_parameters
from fedprivacy.runs.plan import TrainingPlan
from fedprivacy.tasks import Shard, ShardSource
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.tasks.loader import held_out_of, offers_held_out, scores_of
from fedprivacy.tasks.standardising import Standardise
from fedprivacy.training.algorithms import Algorithm, text_of
from fedprivacy.training.local_round import personal_mask
from fedprivacy.values.held_out import HeldOut


@dataclass(frozen=True)
class ClientModels:
    """The models that simulated clients use after a round.

    Attributes:
        plan: of the run.
        kept: what its clients keep.
        number: of the round.
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
        """Of each client that has a model of its own, by client_id."""
        return {client_id: self.of(client_id) for client_id in self._kept} if self._algorithm.personal else {}

    @property
    def _algorithm(self) -> Algorithm:
        return self.plan.config.algorithm_in(self.number)

    @property
    def _kept(self) -> Mapping[str, Tensor]:
        return self.kept.own if self.kept.algorithm == text_of(self._algorithm) else {}

    @cached_property
    def _shared(self) -> tuple[Tensor, Tensor | None]:
        """The global model, flat, and which parameters are in personal layers."""
        model = self.plan.task.model()
        names = tuple(trainable_parameters(model))
        return flat(self.arrays, names).float(), personal_mask(self._algorithm, model)


@dataclass(frozen=True)
class HeldOutEvaluation:
    """Measures all clients.

    Attributes:
        plan: of the run.
        kept: what its clients keep.
    """

    plan: TrainingPlan
    kept: KeptModels

    def due(self, number: int) -> bool:
        """Whether clients are measured after a round: every so many, and after the last."""
        config = self.plan.config
        if number == 0 or not offers_held_out(self.plan.task):
            return False
        every = config.held_out_evaluation
        return number == config.rounds or (every > 0 and number % every == 0)

    @spanned("held-out evaluation")
    def measure(self, number: int, arrays: ArrayRecord, standardise: Standardise | None) -> dict[str, HeldOut]:
        """Each client's scores under the model that it uses after a round, by client_id.

        Args:
            number: of the round.
            arrays: the global model.
            standardise: what inputs become before the model sees them.

        Raises:
            TaskError: the task has no such records for a client, or its scores fail.
        """
        task, clients = self.plan.task, self.plan.config.clients
        model = task.model().eval()
        own = ClientModels(self.plan, self.kept, number, arrays)
        found = {}
        for part in range(clients):
            records = held_out_of(task, ShardSource(partition_id=part, num_partitions=clients))
            client_id = simulated_client_id(part, clients)
            vector_to_parameters(own.of(client_id), [p for p in model.parameters() if p.requires_grad])
            found[client_id] = self._scored(model, records, standardise)
        return found

    @torch.no_grad()
    def _scored(self, model: nn.Module, records: Shard, standardise: Standardise | None) -> HeldOut:
        if not len(records.inputs):
            return HeldOut(0, {})
        inputs = records.inputs if standardise is None else standardise(records.inputs)
        outputs = model(inputs)
        each = {n: s.measure(outputs, records.targets).double() for n, s in scores_of(self.plan.task).items()}
        return HeldOut(len(records.inputs), {name: float(values.mean()) for name, values in each.items()})
