"""Tasks that the auditor is tried on, small enough for hundreds of audits. The code under audit is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from fedprivacy.audit.auditor import GATES
from fedprivacy.audit.findings import Gate
from fedprivacy.audit.our_client import OurClient
from fedprivacy.audit.subject import Effort
from fedprivacy.gradients import methods, per_record
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.tasks import Recipe, Shard, Task


def audited(seed: int, task: type[Task] | None = None, effort: Effort = Effort.QUICK, **settings: Any) -> OurClient:
    """Settings of a run of a new task, `Small` unless another one is given, whose training is audited."""
    given = {"noise-multiplier": 1.0, "device": "cpu"} | {name.replace("_", "-"): v for name, v in settings.items()}
    return OurClient.of(TrainingPlan.of(given, (task or Small)()), effort=effort, seed=seed)


def judged(
    gates: Sequence[str], seed: int, task: str = "Small", settings: Mapping[str, Any] | None = None
) -> list[Gate]:
    """Verdicts of some gates on one run of a task, which is named."""
    subject = audited(seed, globals()[task], **(settings or {}))
    return [GATES[gate](subject) for gate in gates]


@contextmanager
def engines_believed():
    """Sizes of batches are not tried out, which takes most of an audit's time; `tests/gradients` tries them."""
    with ExitStack() as stack:
        for module in (methods, per_record):
            stack.enter_context(mock.patch.object(module, "sizes_that_agree", lambda *given: tuple(given[3])))
        yield


class Small(Task):
    """A perceptron on forty made-up records; their number is private."""

    shard_sizes_public = False
    nominal_shard_size = 50
    recipe = Recipe(
        clients=2, rounds=20, local_steps=2, sampling_rate=0.5, clipping_norm=0.5, learning_rate=0.5, delta=1e-4
    )

    def model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id or 0)
        return Shard(torch.randn(40, 6, generator=generator), torch.randint(3, (40,), generator=generator))

    def partition(self, num_partitions):
        return f"{num_partitions} parts"


class Open(Small):
    """The same, with a public number of records."""

    shard_sizes_public = True
    nominal_shard_size = None


class Spoken(Small):
    """Sequences of four vectors, of which one layer reads each."""

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id or 0)
        return Shard(torch.randn(40, 4, 64, generator=generator), torch.randint(3, (40,), generator=generator))

    def model(self):
        return Positions()


class Compared(Spoken):
    """The same, of which the model looks at how they differ."""

    def model(self):
        return Positions(centred=True)


class Paired(Spoken):
    """The same, and the layer is called for each."""

    def model(self):
        return Positions(calls=4)


class Positions(nn.Module):
    """A layer large enough for ghost norms, and a head that reads the sum of its outputs."""

    def __init__(self, centred=False, calls=1):
        super().__init__()
        self.centred, self.calls = centred, calls
        self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x):
        hidden = torch.cat([self.layer(part) for part in x.split(4 // self.calls, 1)], 1)
        return self.head((torch.tanh(hidden - hidden.mean(1, keepdim=True)) if self.centred else hidden).sum(1))


class Imputing(Open):
    """A model that puts zero in the place of NaN."""

    def model(self):
        return nn.Sequential(Filled(), super().model())


class Filled(nn.Module):
    def forward(self, records):
        return records.nan_to_num(0.0)


class Words(Open):
    """Whole numbers, of which none can be NaN."""

    def model(self):
        return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 3))

    def shard(self, source):
        generator = torch.Generator().manual_seed(5)
        words, classes = torch.randint(7, (40, 2), generator=generator), torch.randint(3, (40,), generator=generator)
        return Shard(words, classes, null=False)


class Curves(Task):
    """Convolutions, targets that are numbers, a rare record, momentum and weight decay."""

    shard_sizes_public, nominal_shard_size = False, 1000
    recipe = Recipe(
        clients=2, sampling_rate=0.01, clipping_norm=0.1, learning_rate=0.01, momentum=0.9, weight_decay=0.1
    )

    def model(self):
        return nn.Sequential(nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1))

    def loss(self, outputs, targets):
        return (outputs[:, 0] - targets).square()

    def shard(self, source):
        generator = torch.Generator().manual_seed(1)
        return Shard(torch.randn(120, 1, 10, generator=generator), torch.randn(120, generator=generator))


class Nobody(Curves):
    """A client without a record."""

    def shard(self, source):
        return Shard(torch.zeros(0, 1, 10), torch.zeros(0))


class Mixing(Curves):
    """A model that subtracts the mean of its batch once records are large: the check of models sees made-up ones."""

    def model(self):
        return Mixed()


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(10, 1)

    def forward(self, x):
        x = x[:, 0]
        return self.inner(torch.where((x.abs() > 1e5).any(), x - x.mean(0), x))


SOUND: dict[str, tuple[type[Task], dict[str, Any]]] = {
    "with a private size": (Small, {}),
    "with public sizes": (Open, {}),
    "of sequences": (Spoken, {}),
    "of sequences that are compared, by layer, with Adam": (
        Compared,
        {"clipping": "per-layer", "optimizer": "adam", "learning_rate": 0.01},
    ),
    "of sequences that are read one by one": (Paired, {}),
    "of a model that imputes, evaluated": (
        Imputing,
        {"clipping": "adaptive", "noise_multiplier": 2.0, "local_evaluation": 2, "local_steps": 2},
    ),
    "of whole numbers": (Words, {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01}),
    "automatic, with momentum": (Small, {"clipping": "automatic", "momentum": 0.9}),
    "of curves": (Curves, {}),
    "of nobody": (Nobody, {}),
}
"""Runs of the code as it is, where no gate may fail: task and settings. All values of a setting are in some run."""
