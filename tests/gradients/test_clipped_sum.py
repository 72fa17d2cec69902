"""The clipped sum equals a per-record loop in float64, and no record counts for more than C."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import FlatClipping, GradientEngine
from fedprivacy.gradients.engine import Clipped
from tests.gradients.oracle import cross_entropy, expected_sum, records_gradients


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def engines():
    """One engine for each model: to choose its method takes most of the time."""
    torch.manual_seed(0)
    return {build: GradientEngine(build(), cross_entropy) for build in (mlp, cnn)}


def batch_of(size, *record):
    return torch.randn(size, *record), torch.randint(3, (size,))


@given(
    records=st.integers(0, 9),
    clipping_norm=st.sampled_from([1e-3, 0.3, 1e4]),
    seed=st.integers(0, 999),
    build=st.sampled_from([mlp, cnn]),
)
def test_equals_the_per_record_loop(engines, records, clipping_norm, seed, build):
    torch.manual_seed(seed)
    engine = engines[build]
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(build().parameters()), engine.model.parameters())
    inputs, targets = batch_of(records, *((1, 4, 4) if build is cnn else (6,)))
    result = engine.clipped_sum(inputs, targets, clipping_norm)
    gradients = records_gradients(engine.model, cross_entropy, inputs, targets)
    expected = expected_sum(gradients, FlatClipping(), clipping_norm)
    assert torch.allclose(result, expected, rtol=1e-4, atol=2e-5 * min(clipping_norm, 1.0) * max(records, 1))


def test_parts_of_a_batch_that_are_joined_count_all_its_records(engines):
    torch.manual_seed(0)
    clip, (inputs, targets) = engines[mlp].clip, batch_of(50, 6)
    norm = float(torch.cat(clip(inputs, targets, 1.0).squared_norms).median().sqrt()) * (1 + 1e-6)
    parts = [clip(inputs[some], targets[some], norm) for some in (slice(0, 30), slice(30, 41), slice(41, 50))]
    joined = Clipped.join(parts)
    assert (joined.records, joined.within(norm)) == (50, 25)
    assert torch.allclose(joined.total, clip(inputs, targets, norm).total, atol=1e-5)


def test_one_record_never_counts_for_more_than_c(engines):
    torch.manual_seed(0)
    clipped_sum, clipping_norm = engines[mlp].clipped_sum, 0.1
    inputs, targets = 1e4 * torch.randn(50, 6), torch.randint(3, (50,))
    whole = clipped_sum(inputs, targets, clipping_norm)
    for i in range(50):
        others = torch.arange(50) != i
        without = clipped_sum(inputs[others], targets[others], clipping_norm)
        assert (whole - without).norm() <= clipping_norm * (1 + 1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), "label"])
def test_a_record_without_a_finite_gradient_contributes_zero(poison, engines):
    """A record that makes the computation fail contributes nothing either."""
    torch.manual_seed(0)
    inputs, targets = batch_of(5, 6)
    good = torch.arange(5) != 2
    clean = engines[mlp].clipped_sum(inputs[good], targets[good], 1.0)
    if poison == "label":
        targets[2] = 9
    else:
        inputs[2] = poison
    assert torch.allclose(engines[mlp].clipped_sum(inputs, targets, 1.0), clean, atol=1e-6)


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


def test_a_large_model_is_clipped_as_exactly():
    torch.manual_seed(0)
    engine = GradientEngine(
        nn.Linear(300_000, 1, bias=False),
        lambda outputs, _: 100 * outputs[:, 0],
        max_memory=1,  # one record at a time
    )
    assert 1 - 3e-6 < engine.clipped_sum(torch.randn(1, 300_000), torch.zeros(1), 1.0).norm() <= 1.0


def test_a_loss_that_averages_over_the_batch_is_refused():
    with pytest.raises(ValueError, match="one value for each record"):
        GradientEngine(mlp(), functional.cross_entropy).clipped_sum(*batch_of(4, 6), 1.0)
