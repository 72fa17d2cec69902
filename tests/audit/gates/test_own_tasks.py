"""Tasks of all kinds are audited, and no gate fails where nothing is wrong."""

import pytest
import torch
from torch import nn

import fedprivacy as fp
from tests.privacy.audited_tasks import GATES, audited


class Words(fp.Task):
    """Whole numbers as inputs, which have no null; a public number of records; Adam."""

    recipe = fp.Recipe(clients=2, rounds=10, local_steps=3, sampling_rate=0.1, optimizer="adam", learning_rate=0.01)

    def model(self):
        return nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(40, 4))

    def shard(self, source):
        generator = torch.Generator().manual_seed(1)
        words = torch.randint(30, (50, 5), generator=generator)
        return fp.Shard(words, torch.randint(4, (50,), generator=generator), null=False)


class Curves(fp.Task):
    """Convolutions, targets that are numbers, a rare record, momentum and weight decay."""

    shard_sizes_public, nominal_shard_size = False, 1000
    recipe = fp.Recipe(
        clients=2, sampling_rate=0.01, clipping_norm=0.1, learning_rate=0.01, momentum=0.9, weight_decay=0.1
    )

    def model(self):
        return nn.Sequential(nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1))

    def loss(self, outputs, targets):
        return (outputs[:, 0] - targets).square()

    def shard(self, source):
        generator = torch.Generator().manual_seed(1)
        return fp.Shard(torch.randn(120, 1, 10, generator=generator), torch.randn(120, generator=generator))


class Nobody(Curves):
    """A client without a record."""

    def shard(self, source):
        return fp.Shard(torch.zeros(0, 1, 10), torch.zeros(0))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "task",
    [Curves, *(pytest.param(task, marks=pytest.mark.soak) for task in (Words, Nobody))],
    ids=lambda task: task.__name__.lower(),
)
def test_no_gate_fails(task):
    subject = audited(4, task)
    for name, check in GATES.items():
        judged = check(subject)
        assert judged.passed, (name, judged.reasons)


class Mixing(Curves):
    """A model that subtracts the mean of its batch once records are large: the check of models sees made-up ones."""

    def model(self):
        return _Mixing()


class _Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(10, 1)

    def forward(self, x):
        x = x[:, 0]
        return self.inner(torch.where((x.abs() > 1e5).any(), x - x.mean(0), x))


def test_a_model_that_mixes_large_records_is_noticed_or_computed_record_by_record():
    """Whatever the engine does with it, no record may count for more than the clipping norm."""
    subject = audited(4, Mixing)
    assert GATES["replay"](subject).passed
    assert GATES["invariance"](subject).passed
