"""The size of a part of a batch follows from public numbers alone, and few of its rows are no records."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, methods
from fedprivacy.gradients.layout import cut
from fedprivacy.gradients.products import as_on_gpu
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks import Shard
from fedprivacy.training.dpsgd import NoisyMean
from fedprivacy.values.events import PoissonSampledGaussian
from tests.gradients.oracle import cross_entropy


@pytest.fixture(autouse=True)
def any_company(monkeypatch):
    """Whether records are kept apart in these sizes is not asked: it takes most of the time."""
    monkeypatch.setattr(methods, "sizes_that_agree", lambda _method, _model, _probe, sizes, _kept: sizes)


def noisy_mean(rate, expected):
    return NoisyMean(SampledGaussianSum(PoissonSampledGaussian(rate, 1.0), 1.0), expected)


def size_on_a_gpu(model, rate, expected, max_memory=None):
    """The only size of its parts, once an engine is prepared for expected batches."""
    with as_on_gpu():
        engine = GradientEngine(model, cross_entropy, max_memory=max_memory)
        engine.prepare(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long), noisy_mean(rate, expected).usual_batch)
    (size,) = engine.sizes
    return size


def share_of_rows(counts, sizes, *turn):
    """Rows computed for each record of batches of so many records."""
    each, times = np.unique(counts, return_counts=True)
    rows = [sum(part.size for part in cut(count, sizes, *turn)) for count in each.tolist()]
    return np.dot(rows, times) / np.dot(each, times)


@pytest.mark.parametrize("rate", [0.5, 0.01])
def test_on_a_gpu_a_part_holds_the_usual_batch_or_an_equal_share_of_it(rate):
    shares, draw = {}, np.random.default_rng(0).binomial
    for expected in (256, *range(270, 1300, 60), 512, 1024, 2000, 5000):
        size = size_on_a_gpu(nn.Linear(6, 3), rate, expected)
        usual = noisy_mean(rate, expected).usual_batch
        assert size % 32 == 0 and len(list(cut(math.floor(usual), (size,)))) == math.ceil(usual / 1024)
        shares[expected] = share_of_rows(draw(round(expected / rate), rate, 100_000), (size,))
    assert np.mean(list(shares.values())) <= 1.12 and max(shares.values()) <= 1.25  # a size is a multiple of 32
    assert max(share for expected, share in shares.items() if expected >= 512) <= 1.15


@pytest.mark.parametrize("records", [160, 159])
def test_on_a_gpu_records_that_join_change_no_size(records):
    """40 are expected of a public 80, but some 80 join, one fewer in a neighbour's shard."""
    sizes = []

    def loss(outputs, targets):
        sizes.append(len(outputs))
        return cross_entropy(outputs, targets)

    shard = Shard(torch.randn(records, 6), torch.ones(records, dtype=torch.long))
    with as_on_gpu():
        engine, mean = GradientEngine(nn.Linear(6, 3), loss), noisy_mean(0.5, 40.0)
        for step in range(3):
            mean.release(engine, shard, 1.0, Keystream.from_seed(1, "sizes"), Position(1, step))
            assert sizes[-2:] == [64, 64]


def test_on_a_gpu_short_memory_takes_more_parts_of_one_size():
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 64, 3, padding=1), nn.Flatten(), nn.Linear(192, 3))
    written = 4 * sum(parameter.numel() for parameter in model[1].parameters())
    found = {memory: size_on_a_gpu(model, 0.1, 900, memory) for memory in (None, 10**6, 3 * 10**5)}
    assert found[None] == 960 > found[10**6] > found[3 * 10**5] >= 32
    assert all(size % 32 == 0 and size * written <= memory for memory, size in found.items() if memory)


@pytest.mark.parametrize(("side", "most"), [(66, 1.05), (18, 1.1)], ids=["a megabyte", "70 KB"])
def test_on_a_cpu_few_rows_are_filled_up_where_a_record_is_costly(side, most):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Tanh(), nn.AvgPool2d(side - 2), nn.Flatten(), nn.Linear(16, 2))
    engine = GradientEngine(model, cross_entropy)
    engine.prepare(torch.zeros(0, 3, side, side), torch.zeros(0, dtype=torch.long))
    assert share_of_rows(range(40, 301), engine.sizes, engine.turn) <= most
