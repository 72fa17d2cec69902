"""Gradient inversion: a scan comes back from what a client sends without noise, and does not from a noisy update."""

import math

import numpy as np
import pytest
from torch import nn

from benchmarks.attacks.inversion import HARDLY_ANY_NOISE, Inverted, inverted
from benchmarks.attacks.tests.memorised import Misnamed
from fedprivacy.tasks import Shard


class OneLayer(Misnamed):
    def model(self):
        return nn.Linear(64, 10)


class Images(Misnamed):
    """The same scans as images, which go through a convolution first."""

    def __init__(self):
        super().__init__()
        self.records = Shard(self.records.inputs.reshape(-1, 1, 8, 8), self.records.targets)

    def model(self):
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(256, 10))


class Flattened(Images):
    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class WithoutBias(Misnamed):
    def model(self):
        return nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 10))


def scan(task, number=3):
    return Shard(task.records.inputs[number : number + 1], task.records.targets[number : number + 1])


def blank(record):
    """The ratio that somebody reaches who has seen no update and answers with the mean of all scans."""
    others = Misnamed().records.inputs.double().numpy()
    return Inverted(record.inputs.double().numpy().reshape(1, 64), others.mean(axis=0, keepdims=True), 1.0).psnr


@pytest.mark.parametrize("kind", [Misnamed, OneLayer, Flattened])
def test_where_a_linear_layer_comes_first_the_scan_is_read_off(kind):
    task = kind()
    found = inverted(task, scan(task), noise_multiplier=HARDLY_ANY_NOISE)
    assert found.psnr > 60.0
    assert found.recovered.shape == found.record.shape == scan(task).inputs.shape


IMAGES = pytest.param(Images, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("kind", [IMAGES, WithoutBias])
def test_else_it_is_searched(kind):
    task = kind()
    assert inverted(task, scan(task), noise_multiplier=HARDLY_ANY_NOISE, searching=150).psnr > 25.0


@pytest.mark.parametrize("kind", [Misnamed, IMAGES, WithoutBias])
def test_with_noise_the_attacker_knows_no_more_than_without_the_update(kind):
    task = kind()
    found = inverted(task, scan(task), noise_multiplier=1.0, searching=200)
    assert found.psnr < blank(scan(task)) < 20.0


def test_clipping_alone_hides_nothing():
    task = Misnamed()
    assert inverted(task, scan(task), noise_multiplier=HARDLY_ANY_NOISE, clipping_norm=0.01).psnr > 60.0


def test_the_ratio_of_signal_to_noise_is_in_decibels():
    record = np.zeros((1, 4))
    assert Inverted(record, record + 0.1, 1.0).psnr == pytest.approx(20.0)
    assert Inverted(record, record + 1.6, 16.0).psnr == pytest.approx(20.0)
    assert Inverted(record, record, 1.0).psnr == math.inf


def test_one_record_is_inverted():
    task = Misnamed()
    with pytest.raises(ValueError, match="300 records are given; give one"):
        inverted(task, task.records, noise_multiplier=1.0)
