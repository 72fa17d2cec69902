"""Invariance: what a record adds to a sum is the same in any company, whatever parameters a server chooses.

Clipping bounds what a record's own gradient adds. It bounds the whole change only if nobody else's gradient changes
with it. Each does in floating point, by its last bits, where kernels go by the number of rows; and a server can choose
parameters under which the last bits are another gradient (`tests/privacy/hostile.py`). So a record's part is read from
releases in which it is alone, and in which it has company of various numbers and kinds, and compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.audit.gates import MOST_REASONS, Judged, gate
from fedprivacy.audit.our_client.audited_client import SILENT, Audited, Parameters
from fedprivacy.audit.our_client.probes import SAME_VIEWS, hostile_parameters
from fedprivacy.audit.subject import Effort
from fedprivacy.gradients import trainable_parameters
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.tasks import Shard, ShardSource, Task
from fedprivacy.tasks.loader import open_task
from fedprivacy.training.batches import layout_of
from fedprivacy.values.events import NeighbouringRelation

_COMPANY = (1, 7, 16, 33, 100)
"""Numbers of other records that a record is summed with: around the sizes in which batches are computed."""

_ALLOWED = 2.0 * ROUNDING_ALLOWANCE
"""Maximum distance between a record's parts of sums, in clipping norms: the rounding that both sums are allowed."""

_DOUBLED = 1.9
"""Minimum factor by which a sum grows if every record is there twice and nothing shrinks it."""

_FEATURES, _HIDDEN = 20, 50


@gate(
    "invariance",
    proves="What a record adds to a sum does not depend on who else is in its batch, whatever parameters are sent.",
    assumes="The parameters, numbers of records and extreme neighbours that were tried stand for all others.",
)
def check(audited: Audited) -> Judged:
    """Check whether a record's part of a sum depends on the record, the parameters and public numbers alone."""
    reasons: list[str] = []
    largest = 0.0
    for about, model, shard, parameters in _trials(audited):
        if len(reasons) >= MOST_REASONS:
            break
        apart = _apart(model, shard, parameters)
        discreet = audited.confidential and not isinstance(model.task.original, Magnifying)
        largest = largest if discreet else max(largest, apart)
        if not apart <= _ALLOWED:
            by = "" if discreet else f", by {apart:.2g} clipping norms"
            reasons.append(f"Who else is in a batch changed what a record adds to it{by} ({about}).")
    return Judged(largest, reasons)


def _trials(audited: Audited) -> Iterator[tuple[str, Audited, Shard, Parameters]]:
    """The task's own model on its own records, and a perceptron that magnifies rounding as much as can be."""
    few = slice(max(_COMPANY) + 1)
    own = audited.shard.of_records(audited.shard.inputs[few].cpu(), audited.shard.targets[few].cpu())
    if len(own):
        plain = (
            replace(audited, task=open_task(task=cast(Task, Unvaried(audited.task.original))))
            if audited.grant.augmentation_multiplicity or layout_of(audited.task).per_step
            else audited
        )
        for about, parameters in hostile_parameters(audited):
            yield f"the task's own model {about}", plain, own, parameters
    magnifying = Magnifying(audited.grant.relation, audited.task.dataset)
    model = replace(audited, task=open_task(task=magnifying), shard=magnifying.shard(ShardSource()))
    for trial in range(6 if audited.effort is Effort.QUICK else 60):
        generator = audited.generator(8, trial)
        inputs = torch.randn(max(_COMPANY) + 1, _FEATURES, generator=generator)
        shard = Shard(inputs, torch.randint(2, (len(inputs),), generator=generator).float())
        parameters = magnifying.parameters(generator, 10.0 ** (7 + trial % 3))
        yield "a perceptron whose parameters magnify rounding", model, shard, parameters


def _apart(audited: Audited, shard: Shard, parameters: Parameters) -> float:
    """Return the largest distance between the parts of one record, alone and in company, in clipping norms."""
    grant = audited.asking(sampling_rate=1.0, noise_multiplier=SILENT)

    def total(rows: Tensor, inputs: Tensor) -> NDArray[np.float64]:
        asked = audited.client.holding(shard.of_records(inputs[rows], shard.targets[rows]))
        return audited.sum(asked, grant, parameters)

    record = torch.tensor([len(shard) - 1])
    alone = total(record, shard.inputs) - total(record[:0], shard.inputs)
    worst = 0.0
    for inputs in _companies(shard):
        for others in (torch.arange(number) for number in _COMPANY if number < len(shard)):
            with_it, without = total(torch.cat([others, record]), inputs), total(others, inputs)
            apart = float(np.linalg.norm(with_it - without - alone)) / audited.grant.clipping_norm
            if not apart <= _ALLOWED and _shrunk(without, total(torch.cat([others, others]), inputs)):
                continue  # sums that are shrunk after the noise do not add up
            worst = max(worst, apart) if np.isfinite(apart) else math.inf
    return worst


def _shrunk(once: NDArray[np.float64], twice: NDArray[np.float64]) -> bool:
    """Return whether the sum of all records twice has the direction of the simple sum, but not twice its length."""
    lengths = [float(np.linalg.norm(released)) for released in (once, twice)]
    aligned = float(once @ twice) >= (1.0 - 1e-6) * lengths[0] * lengths[1] > 0.0
    return aligned and lengths[1] < _DOUBLED * lengths[0]


def _companies(shard: Shard) -> Iterator[Tensor]:
    """The records as they are, and with every second of the others in the place of extreme ones."""
    yield shard.inputs
    if shard.inputs.is_floating_point() and len(shard) > 1:
        extreme = shard.inputs.clone()
        extreme[0:-1:4], extreme[2:-1:4] = torch.nan, 1e30
        yield extreme


class Unvaried:
    """A task all whose views are the record, with all rows of a person in each step.

    Which views a record has, and which rows are drawn, goes by its place in the shard.
    """

    augmentation, rows_per_step = SAME_VIEWS, None

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


class Magnifying(Task):
    """A perceptron on made-up records, whose hidden units all compute nearly the same, and whose head subtracts them.

    What is left of a record's output is rounding: were that to depend on the batch, so would the gradient.
    """

    name = "magnifying"
    augmentation = SAME_VIEWS

    def __init__(self, relation: NeighbouringRelation, dataset: str) -> None:
        self.shard_sizes_public = relation is not NeighbouringRelation.ADD_OR_REMOVE_ONE
        self.nominal_shard_size = None if self.shard_sizes_public else 100
        self.dataset = dataset

    def model(self) -> nn.Module:
        """Twenty features, fifty hidden units, one output."""
        return nn.Sequential(nn.Linear(_FEATURES, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error."""
        return (outputs[:, 0] - targets).square()

    def shard(self, source: ShardSource) -> Shard:
        """None of its own."""
        return Shard(torch.zeros(0, _FEATURES), torch.zeros(0))

    def parameters(self, generator: torch.Generator, amplification: float) -> Parameters:
        """A head that is orthogonal to all that the hidden units have in common, and to how they differ by record."""
        directions = torch.randn(_HIDDEN, _FEATURES, dtype=torch.float64, generator=generator)
        common = torch.cat([torch.ones(_HIDDEN, 1, dtype=torch.float64), directions], 1)
        basis, _ = torch.linalg.qr(common, mode="complete")
        rest = basis[:, _FEATURES + 1 :]
        head = rest @ torch.randn(rest.shape[1], dtype=torch.float64, generator=generator)
        head *= amplification / (head.norm() * _HIDDEN**0.5)
        values = [1e-4 * directions, torch.ones(_HIDDEN), head[None], torch.zeros(1)]
        names = trainable_parameters(self.model())
        return {name: value.float().numpy() for name, value in zip(names, values, strict=True)}
