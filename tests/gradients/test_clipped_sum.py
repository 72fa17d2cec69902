"""The clipped sum equals a per-record loop in float64, and no record counts for more than C."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import GradientEngine, trainable_parameters


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def clipped_gradient_sum(model, loss, inputs, targets, clipping_norm):
    return GradientEngine(model, loss).clipped_sum(inputs, targets, clipping_norm)


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def oracle(model, loss, inputs, targets, clipping_norm):
    """One backward pass for each record, in float64."""
    model = model.double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for record, target in zip(inputs.double(), targets, strict=True):
        grads = torch.autograd.grad(loss(model(record[None]), target[None]).sum(), parameters)
        flat = torch.cat([g.flatten() for g in grads])
        if torch.isfinite(flat).all():
            total += flat * min(1.0, clipping_norm / flat.norm().item())
    model.float()
    return total


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(0, 9),
    clipping_norm=st.sampled_from([1e-3, 0.3, 1e4]),
    seed=st.integers(0, 999),
    conv=st.booleans(),
)
def test_equals_the_per_record_loop(batch, clipping_norm, seed, conv):
    torch.manual_seed(seed)
    model = cnn() if conv else mlp()
    inputs = torch.randn(batch, 1, 4, 4) if conv else torch.randn(batch, 6)
    targets = torch.randint(3, (batch,))
    result = clipped_gradient_sum(model, cross_entropy, inputs, targets, clipping_norm)
    expected = oracle(model, cross_entropy, inputs, targets, clipping_norm)
    assert torch.allclose(result.double(), expected, rtol=1e-4, atol=2e-5 * min(clipping_norm, 1.0) * max(batch, 1))


def test_one_record_never_counts_for_more_than_c():
    torch.manual_seed(0)
    model, clipping_norm = mlp(), 0.1
    inputs, targets = 1e4 * torch.randn(50, 6), torch.randint(3, (50,))
    whole = clipped_gradient_sum(model, cross_entropy, inputs, targets, clipping_norm)
    for i in range(50):
        others = torch.arange(50) != i
        without = clipped_gradient_sum(model, cross_entropy, inputs[others], targets[others], clipping_norm)
        assert (whole - without).norm() <= clipping_norm * (1 + 1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_record_without_a_finite_gradient_contributes_zero(poison):
    torch.manual_seed(0)
    model = mlp()
    inputs, targets = torch.randn(4, 6), torch.randint(3, (4,))
    clean = clipped_gradient_sum(model, cross_entropy, inputs[1:], targets[1:], 1.0)
    inputs[0] = poison
    result = clipped_gradient_sum(model, cross_entropy, inputs, targets, 1.0)
    assert torch.isfinite(result).all()
    assert (result - clean).norm() <= 1.0


@pytest.mark.parametrize("size", [1e-12, 1e-20, 1e-25, 1e-30, 1e8])
@pytest.mark.parametrize("clipping_norm", [1e-6, 1.0, 1e6])
def test_gradients_of_any_size_are_clipped(size, clipping_norm):
    """Squares of entries below 1e-23 vanish in float32; a norm of zero would let them pass."""
    model = nn.Linear(3, 1, bias=False)
    gradient = torch.tensor([[1.0, -2.0, 2.0]])
    result = clipped_gradient_sum(model, lambda out, _: size * out[:, 0], gradient, torch.zeros(1), clipping_norm)
    expected = gradient[0].double() * min(size, clipping_norm / 3.0)
    assert torch.allclose(result.double(), expected, rtol=1e-5, atol=0.0)
    assert result.double().norm() <= clipping_norm


def test_a_large_model_is_clipped_as_exactly():
    torch.manual_seed(0)
    model = nn.Linear(2_000_000, 1, bias=False)
    record = torch.randn(1, 2_000_000)
    result = clipped_gradient_sum(model, lambda out, _: 100 * out[:, 0], record, torch.zeros(1), 1.0)
    assert 1 - 3e-6 < result.double().norm() <= 1.0


def test_a_record_that_makes_the_computation_fail_contributes_zero():
    torch.manual_seed(0)
    model, inputs, targets = mlp(), torch.randn(5, 6), torch.tensor([0, 1, 9, 2, 0])
    good = targets < 3
    result = clipped_gradient_sum(model, cross_entropy, inputs, targets, 1.0)
    expected = clipped_gradient_sum(model, cross_entropy, inputs[good], targets[good], 1.0)
    assert torch.allclose(result, expected, atol=1e-6)


def test_frozen_parameters_take_no_place():
    model = mlp()
    model[0].requires_grad_(False)
    result = clipped_gradient_sum(model, cross_entropy, torch.randn(4, 6), torch.randint(3, (4,)), 1.0)
    assert result.shape == (18,)
    assert list(trainable_parameters(model)) == ["2.weight", "2.bias"]


def test_the_model_is_left_as_it_was():
    model = mlp()
    before = {name: p.clone() for name, p in model.named_parameters()}
    clipped_gradient_sum(model, cross_entropy, torch.randn(4, 6), torch.randint(3, (4,)), 1.0)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


def test_a_loss_that_averages_over_the_batch_is_refused():
    with pytest.raises(ValueError, match="one value for each record"):
        clipped_gradient_sum(mlp(), functional.cross_entropy, torch.randn(4, 6), torch.randint(3, (4,)), 1.0)
