"""Adaptive clipping: one release for sum and count, and a clipping norm that finds its quantile."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine
from fedprivacy.training.adaptive import QuantileClipping


def first_output(outputs, targets):
    """The gradient of each record is the record itself, then."""
    return outputs[:, 0]


def engine():
    return GradientEngine(nn.Linear(3, 1, bias=False), first_output)


@pytest.mark.parametrize(("share", "clipping_norm"), [(0.001, 0.1), (0.01, 2.0), (0.3, 0.1)])
def test_one_record_moves_the_joined_vector_by_no_more_than_the_sensitivity(share, clipping_norm):
    torch.manual_seed(0)
    adaptive = QuantileClipping(share=share)
    records = torch.randn(40, 3) * torch.logspace(-3, 3, 40)[:, None]
    clip = engine().clip
    whole = adaptive.append_count(clip(records, torch.zeros(40), clipping_norm), clipping_norm)
    bound = adaptive.sensitivity(clipping_norm)
    distances = []
    for i in range(40):
        others = torch.arange(40) != i
        rest = adaptive.append_count(clip(records[others], torch.zeros(39), clipping_norm), clipping_norm)
        distances.append(float((whole - rest).norm()))
    assert max(distances) <= bound * (1 + 1e-4)
    assert max(distances) >= bound * (1 - 1e-3)  # the bound is met: a clipped record uses all of it


def test_the_norm_finds_its_quantile():
    torch.manual_seed(1)
    adaptive, norm = QuantileClipping(quantile=0.8), 50.0
    records = torch.randn(300, 3)
    lengths = records.norm(dim=1)
    clip = engine().clip
    for _ in range(250):
        released = adaptive.append_count(clip(records, torch.zeros(300), norm), norm)
        norm = adaptive.next_norm(float(released[-1]), norm, 300)
    assert abs(float((lengths <= norm).double().mean()) - 0.8) < 0.02


def test_the_norm_stays_in_range_whatever_the_noise():
    adaptive, rng = QuantileClipping(learning_rate=5.0), np.random.default_rng(0)
    norm = 1.0
    for noise in rng.normal(scale=1e6, size=200):
        norm = adaptive.next_norm(float(noise), norm, 10.0)
        assert 1e-6 <= norm <= adaptive.sensitivity(norm) <= 1e6


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.8])
def test_the_norm_moves_by_the_noisy_share_within_and_never_further_than_if_all_were_on_one_side(quantile):
    """Catches: a sign. Noise makes the count negative, or larger than the batch, as often as not."""
    adaptive, norm, batch = QuantileClipping(quantile=quantile, learning_rate=0.2), 3.0, 100.0
    for noisy, share in ((-1e9, 0.0), (-60.0, 0.0), (-50.0, 0.0), (-20.0, 0.3), (0.0, 0.5), (50.0, 1.0), (1e9, 1.0)):
        moved = adaptive.next_norm(noisy * adaptive.weight(norm), norm, batch)
        assert moved == pytest.approx(norm * math.exp(-0.2 * (share - quantile)))


@pytest.mark.parametrize(
    "setting",
    [{"quantile": 1.1}, {"quantile": -0.1}, {"learning_rate": 0.0}, {"share": 1.0}, {"share": 0.0}],
)
def test_impossible_settings_are_named(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=name):
        QuantileClipping(**setting)
