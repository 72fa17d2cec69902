"""A unit that lies within rounding of a kink does not cost a model the fast method, and hides no wrong rule."""

from unittest import mock

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, rules
from tests.device.models import Residual
from tests.gradients.oracle import any_company, cross_entropy


class Scaled(nn.Module):
    """Multiplies by trained factors."""

    def __init__(self, width):
        super().__init__()
        self.factors = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return x * self.factors


class Kinked(nn.Module):
    """Rounds by the number of records, as kernels do, so that its first unit is active for a record alone and dead in
    company; in float64 it is active in any."""

    def __init__(self, width=256):
        super().__init__()
        self.first, self.scaled, self.head = nn.Linear(6, width), Scaled(width), nn.Linear(width, 3)
        with torch.no_grad():
            self.first.weight[0], self.first.bias[0] = 0, 4e-5

    def forward(self, x):
        large = 1e3 * len(x)
        return self.head(self.scaled((self.first(x) + large - large).relu()))


def factors_of(error):
    """The per-record gradients of `Scaled`, each off by `error` of its size."""
    return lambda layer, inputs, gradients: {"factors": (1 + error) * inputs * gradients}


def method_of(model, inputs):
    with any_company():
        engine = GradientEngine(model, cross_entropy)
        engine.prepare(inputs, torch.zeros(0, dtype=torch.int64))
    return engine.method


@pytest.fixture
def kinked():
    torch.manual_seed(0)
    return Kinked()


@pytest.mark.parametrize(("error", "fast"), [(0.0, True), (1e-3, False), (0.03, False)])
def test_a_unit_at_a_kink_is_told_from_a_wrong_rule(kinked, error, fast):
    x = torch.rand(3, 6)
    active = kinked.first(x) + 3e3 - 3e3 > 0, kinked.first(x) + 1e3 - 1e3 > 0
    assert [bool(unit[:, 0].any()) for unit in active] == [False, True]
    with mock.patch.dict(rules._RULES):
        rules.register_rule(Scaled, factors_of(error))
        assert (method_of(kinked, x) == "book-keeping") == fast


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_no_seed_costs_a_residual_net_the_fast_method(seed):
    torch.manual_seed(seed)
    assert method_of(Residual(), torch.zeros(0, 3, 32, 32)) == "book-keeping"
