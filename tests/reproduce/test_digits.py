"""Digits: features of each record's own pixels, and a run that keeps the budget. The goals are those of the command."""

import numpy as np
import pytest
import torch

from simulations.reproduce import digits
from simulations.reproduce.experiment import Workplace


@pytest.fixture(scope="module")
def scans():
    return digits.ScatteredDigits(1.0).load_records()[0][:6]


def test_a_record_s_features_are_its_own_and_of_length_1(scans):
    task = digits.ScatteredDigits(4.0)
    features = task.scale(scans)
    assert features.shape == (6, task.model().in_features)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(task.scale(scans[2:3]), features[2:3], atol=1e-6)
    assert task.dataset == "digits"  # what it spends adds up with what others spend on these records


def test_products_stand_for_the_square_of_the_features_inner_product():
    unit = torch.nn.functional.normalize(torch.randn(40, 200, generator=torch.Generator().manual_seed(1)))
    found = digits.products(unit)
    kernel = found @ found.T / digits.PRODUCTS
    assert (kernel - (unit @ unit.T) ** 2).abs().max() < 0.2


@pytest.mark.soak
@pytest.mark.usefixtures("undrawn")
def test_a_short_run_learns_within_its_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "ROUNDS", 3)
    told = []
    found = dict(digits.DIGITS.measure(100, Workplace(tmp_path, tmp_path, told.append)))
    assert list(found) == [row.name for row in digits.DIGITS.rows] and len(told) == 3
    for epsilon, measured in zip((1.0, 3.0, 8.0), found.values(), strict=True):
        assert 0.9 * epsilon < measured.epsilon <= epsilon
    assert found["epsilon 8"].value > 0.7
    assert (tmp_path / "epsilon-8" / "run.db").exists()
