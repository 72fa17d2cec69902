"""Standardised inputs under a hostile server: whatever it sends, a record becomes what it is alone, and pays first."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType
from torch import nn

import fedprivacy as fp
from fedprivacy.flower.client.local import LocalClient
from fedprivacy.flower.simulated.without_privacy import PlainCohort
from fedprivacy.flower.wire.messages import RECEIPT, RefusalCode
from fedprivacy.questions.standardise import STANDARDISE, Standardise
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.tasks import Shard
from fedprivacy.tasks.columns import Table
from fedprivacy.training.dpsgd import DPSGD
from tests.flower.asked import a_grant, arrays_of, code, grant_message, send, spent
from tests.flower.blobs import Blobs

BOUNDS = {"age": (0.0, 100.0), "stay": (-1.0, 1.0)}
HOSTILE = [0.0, -0.0, 5e-324, 1e-310, 1e-45, 1.0, -1.0, 99.9, 1e6, 3.5e38, -1e300, math.inf, -math.inf, math.nan]
"""Inputs of records."""


class Scaled(Blobs):
    """Two columns that are standardised, and one input that stays; the records are given."""

    standardise = fp.ask.mean_and_scale(BOUNDS)

    def __init__(self, records=None, dtype=torch.float32):
        generator = torch.Generator().manual_seed(0)
        usual = torch.rand(30, 3, generator=generator) * 50.0
        self.records = (usual if records is None else torch.as_tensor(records)).to(dtype)

    def model(self):
        model = nn.Linear(3, 2)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    def shard(self, source):
        none = None if self.records.is_floating_point() else False  # whole numbers must say which rows are null
        return Shard(self.records, torch.arange(len(self.records)) % 2, null=none)

    def evaluate(self, model):
        return {"accuracy": 0.5 if model(torch.zeros(1, 3)).isfinite().all() else 0.0}

    def table(self, source):
        return Table({"age": self.records[:, 0].numpy(), "stay": self.records[:, -1].numpy()})


SCALED = Scaled()
USUAL = {"mean": np.array([40.0, 0.1]), "scale": np.array([12.0, 0.3])}


def numbers(**changed):
    """Means and scales as a server sends them."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in (USUAL | changed).items()})


def trained(node, record, task=SCALED, **changed):
    content = grant_message(a_grant(**changed))
    content["arrays"] = arrays_of(task)
    if record is not None:
        content[STANDARDISE] = record
    return send(MessageType.TRAIN, content, node, task=task)


@pytest.fixture
def seen(monkeypatch):
    """The shards that are trained on."""
    shards = []
    train = DPSGD.train

    def noting(self, engine, shard, **rest):
        shards.append(shard)
        return train(self, engine, shard, **rest)

    monkeypatch.setattr(DPSGD, "train", noting)
    return shards


@pytest.fixture
def node(node):
    return node | {"epsilon": 1e6}


NONE = [
    *(numbers(mean=mean) for mean in ([math.nan, 0.0], [0.0], [[0.0, 0.0]], np.zeros(2, np.float32))),
    *(numbers(scale=scale) for scale in ([math.inf, 1.0], [0.0, 1.0], [1.0, -0.0], [1.0, -1.0], [1.1e15, 1.0])),
    ArrayRecord({"mean": Array(USUAL["mean"])}),
    ArrayRecord({**numbers(), "seed": Array(np.zeros(2))}),
    ConfigRecord({"mean": [0.0, 0.0], "scale": [1.0, 1.0]}),
]
"""Arrays are read as a model's are, of which `test_server_fields.py` sends every other kind."""


def test_numbers_that_are_none_are_refused_before_anything_is_charged(node, monkeypatch):
    monkeypatch.setattr(LocalClient, "with_standardised_inputs", lambda *_: pytest.fail("records were read"))
    for record in NONE:
        assert code(trained(node, record)) is RefusalCode.GRANT_INVALID, record
        assert spent(node) == 0


def test_inputs_become_what_the_server_s_numbers_say_and_those_of_the_bounds_if_it_sends_none(node, seen):
    assert RECEIPT in trained(node, numbers()).content
    assert RECEIPT in trained(node, None, round=2).content
    for shard, (means, scales) in zip(seen, [((40.0, 0.1), (12.0, 0.3)), ((50.0, 0.0), (50.0, 1.0))], strict=True):
        for column, (low, high) in enumerate(BOUNDS.values()):
            moved = SCALED.records[:, column].double().clamp(low, high)
            assert torch.equal(shard.inputs[:, column], ((moved - means[column]) / scales[column]).float())
        assert torch.equal(shard.inputs[:, 2], SCALED.records[:, 2])
        assert shard.inputs.dtype == torch.float32


def test_no_record_is_read_before_its_charge_is_on_the_disk(node, monkeypatch):
    read = []
    monkeypatch.setattr(Standardise, "forward", lambda *_: read.append(spent(node)) or 1 / 0)
    assert code(trained(node, numbers(), steps=2)) is RefusalCode.CLIENT_FAILED
    assert read == [2]


EXTREMES = {
    "a tiny scale": ([0.0, 0.0], [5e-324, 1e-310]),
    "a scale that makes the smallest numbers": ([0.0, 0.0], [1e15, 1e15]),
    "a mean that cancels": ([math.nextafter(99.9, 0.0), 1e-16], [1e-17, 1e-17]),
    "scales that round": ([1 / 3, 1 / 7], [1 / 3, 3.0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sent", EXTREMES.values(), ids=EXTREMES)
def test_what_a_record_becomes_is_the_same_bits_in_any_company(sent, dtype):
    standardise = Standardise(*zip(*BOUNDS.values(), strict=True), *sent)
    generator = torch.Generator().manual_seed(1)
    crowd = torch.tensor(HOSTILE, dtype=torch.float64)[torch.randint(len(HOSTILE), (131, 3), generator=generator)]
    rows = torch.cat([crowd, torch.randn(70, 3, generator=generator).double() * 60.0]).to(dtype)
    together = standardise(rows)
    assert together.dtype == dtype and together.shape == rows.shape
    for place in range(len(rows)):
        for first, last in ((place, place + 1), (max(place - 3, 0), place + 5), (place, len(rows))):
            part = standardise(rows[first:last])[place - first]
            assert part.view(torch.uint8).equal(together[place].view(torch.uint8))
    by_columns = standardise(rows.t().contiguous().t())
    assert by_columns.contiguous().view(torch.uint8).equal(together.view(torch.uint8))
    assert standardise(rows[:0]).shape == (0, 3)


class Loose(Scaled):
    """A task whose model takes whatever comes."""

    def model(self):
        return Any()


class Any(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x):
        return self.layer(x.flatten(1).float().sum(1, keepdim=True))


PICTURES = Loose(torch.zeros(30, 3, 4))


@pytest.mark.parametrize("task", [Loose(torch.zeros(30, 1)), PICTURES, Loose(torch.zeros(30, 3), torch.int64)])
def test_a_shard_that_cannot_be_standardised_is_refused_before_anything_is_charged(node, task):
    """The server takes its charge back for this code: shape and type of a shard's rows are public."""
    assert code(trained(node, numbers(), task=task)) is RefusalCode.GRANT_INVALID
    assert RefusalCode.GRANT_INVALID.before_any_record
    assert spent(node) == 0


class Lacking(Scaled):
    def table(self, source):
        return Table({"age": self.records[:, 0].numpy()})


class Odd(Scaled):
    standardise = fp.ask.mean("age", 0, 100)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (PICTURES, r"the shard's inputs are of shape \[records, 3, 4\]"),
        (Lacking(), "task blobs: the table has no column stay; it has age"),
        (Odd(), r"standardise is a .*give fp\.ask\.mean_and_scale"),
    ],
)
def test_a_simulation_says_so_in_plain_words_before_anything_is_spent(tmp_path, task, said):
    with pytest.raises(ConfigError, match=said):
        fp.simulate(task, clients=2, rounds=1, out=str(tmp_path / "run"))
    assert not (tmp_path / "run" / "ledger.db").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_baseline_without_privacy_trains_on_what_it_is_evaluated_on(tmp_path, monkeypatch):
    seen, alone = [], PlainCohort.alone

    def noting(self, place, one, round):
        seen.append(one.shard)
        return alone(self, place, one, round)

    monkeypatch.setattr(PlainCohort, "alone", noting)
    fp.simulate(Scaled(), clients=2, rounds=1, out=str(tmp_path / "run"), privacy=False)
    assert len(seen) == 2
    for shard in seen:
        assert torch.equal(shard.inputs[:, 0], ((SCALED.records[:, 0].double() - 50.0) / 50.0).float())
