"""No record counts for more than C, whatever it is, in every clipping and in float32 too."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import AutomaticClipping, FlatClipping, GradientEngine, PerLayerClipping
from fedprivacy.gradients.engine import Clipped
from tests.gradients.oracle import cross_entropy


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture(scope="module")
def engine():
    """Shared: to choose its method takes most of the time."""
    torch.manual_seed(0)
    return GradientEngine(mlp(), cross_entropy)


def batch_of(size, *record):
    return torch.randn(size, *record), torch.randint(3, (size,))


def test_parts_of_a_batch_that_are_joined_count_all_its_records(engine):
    torch.manual_seed(0)
    clip, (inputs, targets) = engine.clip, batch_of(50, 6)
    norm = float(torch.cat(clip(inputs, targets, 1.0).squared_norms).median().sqrt()) * (1 + 1e-6)
    parts = [clip(inputs[some], targets[some], norm) for some in (slice(0, 30), slice(30, 41), slice(41, 50))]
    joined = Clipped.join(parts)
    assert (joined.records, joined.within(norm)) == (50, 25)
    assert torch.allclose(joined.total, clip(inputs, targets, norm).total, atol=1e-5)


def test_one_record_never_counts_for_more_than_c(engine):
    torch.manual_seed(0)
    clipped_sum, clipping_norm = engine.clipped_sum, 0.1
    inputs, targets = 1e4 * torch.randn(50, 6), torch.randint(3, (50,))
    whole = clipped_sum(inputs, targets, clipping_norm)
    for i in range(50):
        others = torch.arange(50) != i
        without = clipped_sum(inputs[others], targets[others], clipping_norm)
        assert (whole - without).norm() <= clipping_norm * (1 + 1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), "label"])
def test_a_record_without_a_finite_gradient_contributes_zero(poison, engine):
    """A record that makes the computation fail contributes nothing either."""
    torch.manual_seed(0)
    inputs, targets = batch_of(5, 6)
    good = torch.arange(5) != 2
    clean = engine.clipped_sum(inputs[good], targets[good], 1.0)
    if poison == "label":
        targets[2] = 9
    else:
        inputs[2] = poison
    assert torch.allclose(engine.clipped_sum(inputs, targets, 1.0), clean, atol=1e-6)


@pytest.mark.parametrize("clipping_norm", [1e-6, 1.0, 1e6])
def test_gradients_of_any_size_are_clipped(clipping_norm):
    """Squares of entries below 1e-23 vanish in float32; a norm of zero would let them pass."""
    engine = GradientEngine(nn.Linear(3, 1, bias=False), lambda outputs, sizes: sizes * outputs[:, 0])
    gradient = torch.tensor([[1.0, -2.0, 2.0]])
    for size in (1e-12, 1e-20, 1e-25, 1e-30, 1e8):
        result = engine.clipped_sum(gradient, torch.tensor([size]), clipping_norm)
        expected = gradient[0].double() * min(size, clipping_norm / 3.0)
        assert torch.allclose(result, expected, rtol=1e-5, atol=0.0)
        assert result.norm() <= clipping_norm


def test_a_loss_that_averages_over_the_batch_is_refused():
    with pytest.raises(ValueError, match="one value for each record"):
        GradientEngine(mlp(), functional.cross_entropy).clipped_sum(*batch_of(4, 6), 1.0)


# --- every clipping ---

RECORDS = 500
CLIPPINGS = (FlatClipping(), PerLayerClipping(), AutomaticClipping(), AutomaticClipping(stability=1e-6))


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
@pytest.mark.parametrize("layers", [1, 2, 7])
@pytest.mark.parametrize("clipping_norm", [1e-3, 0.7, 3e4])
def test_a_scaled_gradient_is_no_longer_than_c_though_every_step_rounds_to_float32(clipping, layers, clipping_norm):
    """Gradients have every length, from far below C to far above it, all of it in one layer or spread over them."""
    torch.manual_seed(0)
    groups = clipping.groups([f"layer{i}.weight" for i in range(layers)])
    lengths = clipping_norm * torch.logspace(-9, 9, RECORDS, dtype=torch.float64)
    gradients = torch.randn(layers, RECORDS, 5, dtype=torch.float64) * torch.logspace(0, 3, RECORDS)[:, None]
    gradients[1:, : RECORDS // 2] = 0.0
    gradients = (gradients * (lengths / gradients.square().sum((0, 2)).sqrt())[:, None]).float()
    squared = torch.zeros(max(groups) + 1, RECORDS, dtype=torch.float64)
    squared.index_add_(0, torch.tensor(groups), gradients.norm(dim=2).double().square())
    scales = clipping.scales(squared, clipping_norm).float()
    clipped = torch.stack([gradients[i] * scales[groups[i]][:, None] for i in range(layers)])
    norms = clipped.double().square().sum((0, 2)).sqrt()
    assert norms.max() <= clipping_norm
    assert norms.max() >= clipping_norm * 0.99  # the bound is met, or the test would see no scale that is too large


def test_the_least_stability_is_taken_and_no_less():
    assert AutomaticClipping(stability=1e-6).stability == 1e-6
    for less in (0.99e-6, 0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="stability"):
            AutomaticClipping(less)
