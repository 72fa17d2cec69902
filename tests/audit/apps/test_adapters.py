"""Records note which of them are fetched, every way to seed is seen, and refusals say what to do."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fedprivacy.audit.apps import AppError, Records, audit_app, load_app
from fedprivacy.audit.apps.watched_training import Seeds, replaced
from fedprivacy.tasks import Shard
from fedprivacy.values.events import NeighbouringRelation
from tests.audit.apps.sound import FEATURES, Sound


@pytest.fixture
def fetched():
    return []


@pytest.fixture
def records(fetched):
    shard = Shard(torch.arange(10.0)[:, None], torch.arange(10))
    return Records(shard, lambda rows, batch: fetched.append((rows.tolist(), batch)))


def test_a_batch_is_two_tensors_and_is_noted(records, fetched):
    mask = [n in {2, 5} for n in range(10)]
    for which in ([2, 5], torch.tensor([2, 5]), np.array([2, 5]), torch.tensor(mask), mask, slice(2, 6, 3)):
        inputs, targets = records[which]
        assert inputs.tolist() == [[2.0], [5.0]] and targets.tolist() == [2, 5]
        assert fetched.pop() == ([2, 5], True)
    for which in ([], torch.zeros(10, dtype=torch.bool), slice(0, 0)):
        inputs, targets = records[which]
        assert inputs.shape == (0, 1) and targets.shape == (0,)
        assert fetched.pop() == ([], True)


def test_a_loader_takes_batches_and_whoever_looks_at_one_record_takes_one(records, fetched):
    one, target = records[-1]
    assert one.tolist() == [9.0] and int(target) == 9
    batches = [targets.tolist() for _, targets in DataLoader(records, batch_size=4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert fetched == [([9], False), *((batch, True) for batch in batches)]


SEEDED = (
    lambda: torch.manual_seed(5),
    lambda: torch.Generator().manual_seed(5),
    lambda: np.random.seed(5),
    lambda: np.random.default_rng(5),
    lambda: np.random.RandomState(5),
    lambda: random.seed(5),
    lambda: random.Random(5),
)


@pytest.mark.parametrize("draw", SEEDED)
def test_every_way_to_seed_is_seen_and_can_be_changed(draw):
    for seeds in (Seeds(), Seeds(change=1)):
        with replaced(seeds.watched(), Sound):
            draw()
        assert seeds.guessable == [5]
    with replaced((own := Seeds(own=frozenset({5}))).watched(), Sound):
        draw()
    assert own.found == [5] and own.guessable == []


def test_of_a_seed_torch_takes_32_bits_on_a_cpu_and_numpy_all():
    for long in (2**62 + 5, 2**50 + 5):
        with replaced((seeds := Seeds(change=1)).watched(), Sound):
            noise = torch.randn(3, generator=torch.Generator().manual_seed(long))
            np.random.default_rng(long)
        assert seeds.guessable == [long]
        assert torch.equal(noise, torch.randn(3, generator=torch.Generator().manual_seed(4)))


class Fails(Sound):
    def train(self, model, records, asked):
        raise KeyError("optimizer")


class FailsLater(Sound):
    def train(self, model, records, asked):
        if asked.round == 2:
            raise KeyError("hooks")
        return super().train(model, records, asked)


class AsksForEpsilonWhileTraining(Sound):
    def left(self, model, records):
        return super().left(model, records) | {"epsilon": self.asked}

    def begin(self, records, asked):
        if asked.noise_multiplier < 0.01:
            raise MemoryError("petabytes")
        self.asked = 1.0


class TakesEverythingAtOnce(Sound):
    def begin(self, records, asked):
        self.all = records[:]

    def train(self, model, records, asked):
        self.begin(records, asked)
        optimizer = self.optimizer(model, asked)
        for _ in range(asked.steps):
            rows = self.sample(records, asked)
            self.gradients(model, self.all[0][rows], self.all[1][rows], asked)
            optimizer.step()
        return self.left(model, records)


class TakesNothing(Sound):
    def train(self, model, records, asked):
        return {"parameters": model.state_dict()}


class AlwaysTheSameSteps(Sound):
    def train(self, model, records, asked):
        return super().train(model, records, replace(asked, steps=4))


class AlwaysTheSameNoise(Sound):
    def noise(self, sum, asked):
        return torch.randn(sum.shape)


class NoEpsilon(Sound):
    def epsilon(self, rounds):
        raise AttributeError("accountant")


class NoSuchEvent(Sound):
    relation = NeighbouringRelation.REPLACE_ONE


class FewRecords(Sound):
    def records(self):
        return torch.zeros(3, FEATURES), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (Fails, r"train\(\) fails: KeyError: 'optimizer' \(test_adapters.py, line \d+\)"),
        pytest.param(FailsLater, r"train\(\) fails in round 2: KeyError: 'hooks'", marks=pytest.mark.exhaustive),
        (AsksForEpsilonWhileTraining, r"asked for next to no noise: MemoryError: .*Compute no epsilon in train\(\)"),
        (TakesEverythingAtOnce, r"train\(\) took all records at once"),
        (TakesNothing, r"train\(\) took no batch from `records`"),
        (AlwaysTheSameSteps, r"asked for 1 step with every record and took 4; pass on asked\.steps"),
        (AlwaysTheSameNoise, r"pass on asked\.noise_multiplier"),
        pytest.param(NoEpsilon, r"epsilon\(1\) fails: AttributeError: accountant", marks=pytest.mark.exhaustive),
        (NoSuchEvent, "settings: the relation is replace-one and sampling_rate is 0.25"),
        (FewRecords, r"8 records or more"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_cannot_be_audited_is_refused_and_never_passes(app, said):
    with pytest.raises(AppError, match=said):
        audit_app(app, "theirs", seed=0)


def test_an_app_is_a_class_a_function_or_an_object_and_is_new_each_time(tmp_path):
    (tmp_path / "theirs.py").write_text(
        "from tests.audit.apps.sound import Sound\n\n\ndef made():\n    return Sound()\n\n\nthere = Sound()\n"
    )
    for name in ("Sound", "made", "there"):
        make = load_app(f"{tmp_path / 'theirs.py'}:{name}")
        assert isinstance(make(), Sound) and make() is not make()
