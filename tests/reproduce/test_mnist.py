"""MNIST: what is trained on is not tested on, and short runs keep their budgets."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedprivacy as fp
from simulations.reproduce import mnist
from simulations.reproduce.experiment import Workplace

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Few pictures, of which the brighter half shows where the digit is, in a file like MNIST's; and few steps."""
    random, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    y = random.integers(0, 10, 700)
    pixels = random.integers(0, 60, (700, 28, 28))
    for picture, digit in zip(pixels, y, strict=True):
        picture[2 * digit + 2 : 2 * digit + 6, 6:22] += 180
    np.savez(folder / "mnist.npz", X=pixels.reshape(700, 784).astype(np.uint8), y=y.astype(np.uint8))
    monkeypatch.setattr(mnist, "TRAINING", 600)
    monkeypatch.setattr(mnist, "HELD_OUT", 100)
    monkeypatch.setattr(mnist.ScatteredMnist, "recipe", replace(mnist.ScatteredMnist.recipe, rounds=3))
    for name in ("FROM_SCRATCH", "SCATTERING"):
        monkeypatch.setattr(mnist, name, replace(getattr(mnist, name), batch_size=200, steps=20))
    return folder


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_every_row_of_a_short_run_keeps_its_budget(made_up, tmp_path):
    told, budgets = [], [2.93, 2.93, 3.0, 3.0, 3.0, 3.0]
    found = dict(mnist.MNIST.measure(0, Workplace(made_up, tmp_path, told.append)))
    assert list(found) == [row.name for row in mnist.MNIST.rows]
    assert all(0.9 * budget < row.epsilon <= budget for row, budget in zip(found.values(), budgets, strict=True))
    assert found["scattering"].value > 0.3
    assert len(told) == 7


def test_what_is_tested_on_is_not_trained_on(monkeypatch):
    """The records next to those of the training, and no others."""
    seen = {}

    def train(model, loss, data, **options):
        seen["trained"] = data[1].tolist()
        return SimpleNamespace(model=model, epsilon=1.0)

    monkeypatch.setattr(mnist.fp, "train", train)
    monkeypatch.setattr(mnist, "accuracy", lambda model, inputs, digits: float(len(digits)))
    monkeypatch.setattr(mnist, "HELD_OUT", 10)
    data = fp.Shard(torch.zeros(70, 2), torch.arange(70))
    measured = mnist.central(torch.nn.Linear(2, 2), mnist.SCATTERING, data, records=50, seed=0)
    assert (seen["trained"], measured.value) == (list(range(50)), 10.0)


def test_clients_share_no_digit():
    task = mnist.ScatteredMnist(fp.Shard(torch.zeros(63_000, 1), torch.arange(63_000)))
    shards = [task.shard(fp.ShardSource(partition_id=part, num_partitions=10)).targets for part in range(10)]
    assert {len(shard) for shard in shards} == {6000}
    assert torch.cat(shards).sort().values.equal(torch.arange(60_000))


def test_the_network_is_the_paper_s():
    network = mnist.tanh_network()
    assert sum(parameter.numel() for parameter in network.parameters()) == 26_010
    assert network(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.soak
@pytest.mark.skipif(not (DATA / "mnist.npz").exists(), reason="MNIST is not beside the repository")
def test_a_few_steps_on_the_real_digits():
    few = replace(mnist.FROM_SCRATCH, steps=40, learning_rate=6.0)
    torch.manual_seed(0)
    measured = mnist.central(mnist.tanh_network(), few, mnist.images(DATA), records=60_000, seed=0)
    assert measured.value > 0.6 and measured.epsilon <= 2.93
