"""Augmentation multiplicity and half precision: what the engine does around its method."""

import pytest
import torch
from torch import nn

from fedprivacy.gradients import FlatClipping, GradientEngine
from fedprivacy.gradients.layout import Layout
from tests.device.models import Rescaled
from tests.gradients.oracle import (
    any_company,
    cross_entropy,
    error_of,
    expected_sum,
    records_gradients,
    some_clipping_norm,
)


def perceptron():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def convolutions():
    """Branches, so that it is no chain: book-keeping."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
            self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 36, 3)

        def forward(self, x):
            x = torch.relu(self.norm(self.first(x)))
            return self.last((x + self.second(x)).flatten(1))

    return Residual()


def words():
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3))


MODELS = {
    perceptron: lambda *shape: torch.randn(*shape, 6),
    convolutions: lambda *shape: torch.randn(*shape, 1, 6, 6),
    words: lambda *shape: torch.randint(7, (*shape, 3)),
    Rescaled: lambda *shape: torch.randn(*shape, 9),
}


@pytest.mark.parametrize(
    ("build", "max_memory"),
    [(perceptron, 1), (convolutions, None), (words, None), (Rescaled, None)],
    ids=["one", "all", "words", "vmap"],
)
def test_views_are_averaged_before_clipping(build, max_memory):
    torch.manual_seed(0)
    model, targets = build(), torch.tensor([0, 1, 2, 1, 0])
    records = MODELS[build](5, 4)
    by_view = records_gradients(model, cross_entropy, records.flatten(0, 1), targets.repeat_interleave(4))
    gradients = {name: views.unflatten(0, (5, 4)).mean(1) for name, views in by_view.items()}
    clipping_norm = some_clipping_norm(gradients, FlatClipping())
    engine = GradientEngine(model, cross_entropy, layout=Layout(views=4), max_memory=max_memory)
    result = engine.clipped_sum(records, targets, clipping_norm)
    assert error_of(result, expected_sum(gradients, FlatClipping(), clipping_norm), clipping_norm) <= 1e-5


@pytest.mark.parametrize("build", [words, pytest.param(convolutions, marks=pytest.mark.exhaustive)])
def test_half_precision_keeps_the_bound_and_roughly_the_sum(build):
    torch.manual_seed(0)
    model, records, targets = build(), MODELS[build](20), torch.randint(3, (20,))
    half = GradientEngine(model, cross_entropy, autocast=torch.bfloat16)
    with any_company():  # some processors' kernels in half precision do not treat all rows alike
        result = half.clipped_sum(records, targets, 0.1)
    exact = GradientEngine(model, cross_entropy).clipped_sum(records, targets, 0.1)
    assert half.method == "book-keeping in bfloat16"
    assert 0 < (result - exact).norm() <= 0.05 * exact.norm()
    for i in range(20):
        one = half.clipped_sum(records[i : i + 1], targets[i : i + 1], 0.1)
        assert one.double().norm() <= 0.1 * (1 + 1e-6)
