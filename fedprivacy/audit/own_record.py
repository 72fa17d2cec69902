"""A record of the task itself as a canary: its gradient, by the task's own model and loss, is known to the auditor.

Copies of it are the whole shard. At the parameters that the server sends all of them pull in one direction, which plain
autograd tells, of one record at a time and without the gradient engine that is audited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.audit.observed import AuditedTraining, ObservedClient
from fedprivacy.audit.real_client import parameters_of
from fedprivacy.tasks import Shard, Task
from fedprivacy.training.sampled import chosen_rows, layout_of
from fedprivacy.values.unit import missing_target

_CANDIDATES = 64  # records, of which the one with the longest gradient is taken
_COPIES = 200
_DIVERGED = 1e20  # parameters from which on no learning rate moves them further than they are rounded


@dataclass(frozen=True, slots=True, eq=False)
class OwnRecord:
    """A record of a task, and its gradient at a model's parameters.

    Attributes:
        task: whose it is.
        record: a shard of it alone.
        parameters: of the model, by name.
        gradient: before clipping, shape [d].
    """

    task: Task
    record: Shard
    parameters: Mapping[str, NDArray[Any]]
    gradient: NDArray[np.float64]

    @classmethod
    def longest(cls, task: Task, shard: Shard, parameters: Mapping[str, NDArray[Any]]) -> OwnRecord | None:
        """Return that one of a shard's first records with the longest gradient; None if none has a finite one.

        Args:
            task: the task that gives the model and the loss.
            shard: records of the task.
            parameters: the model's, by name.
        """
        if not all(np.abs(values).max(initial=0.0) < _DIVERGED for values in parameters.values()):
            return None
        model = task.model()
        model.load_state_dict({name: torch.from_numpy(values) for name, values in parameters.items()}, strict=False)
        trained = [p for p in model.parameters() if p.requires_grad]
        best, length, layout = None, 0.0, layout_of(task)
        for place in range(min(_CANDIDATES, len(shard.inputs))):
            record = shard.of_records(shard.inputs[place : place + 1], shard.targets[place : place + 1].clone())
            batch = record.inputs, record.targets
            if layout.computed < shard.rows:  # whichever rows are drawn of a person with one, it is that one
                record.targets[:, 1:] = missing_target(record.targets)
                batch = chosen_rows(record, torch.zeros(1).long(), torch.arange(layout.computed).unsqueeze(0))
            inputs, targets, weights = layout.weighted(*batch)
            loss = (weights * task.loss(model(inputs), targets)).sum()
            parts = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            gradient = torch.cat([part.flatten() for part in parts]).double().numpy()
            norm = float(np.linalg.norm(gradient))
            if length < norm < np.inf:
                best, length = cls(task, record, parameters_of(model), gradient), norm
        return best

    @property
    def norm(self) -> float:
        """Norm of the gradient. If it is below the clipping norm, the record moves a release by as much less."""
        return float(np.linalg.norm(self.gradient))

    def observed(
        self, training: AuditedTraining, steps: int, *, seed: int, device: str = "cpu"
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Yield, for each step, d readings and the number of copies in each: the first lies along the gradient.

        All copies count in the first reading, and none in the others.

        The axes are turned so that the gradient is the first one (a Householder reflection): noise that was the same
        along all axes still is.

        Raises:
            RuntimeError: the client sent no update.
        """
        copies = torch.zeros(_COPIES, dtype=torch.long)
        shard = self.record.of_records(self.record.inputs[copies], self.record.targets[copies])
        client = ObservedClient(self.task, shard, training, self.parameters, seed=seed, device=device)
        mirror = self.gradient / self.norm
        sign = -1.0 if mirror[0] > 0.0 else 1.0
        mirror[0] -= sign
        mirror /= np.linalg.norm(mirror)
        for step in range(1, steps + 1):
            release = client.release(step)
            turned = release - 2.0 * (mirror @ release) * mirror
            canaries = np.zeros(release.size)
            canaries[0] = sign * client.joined(step).size
            yield turned, canaries
