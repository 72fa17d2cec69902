"""A program writes over what nobody reads again, and over nothing else."""

import pytest
import torch
from torch import nn

from tests.gradients.oracle import check_every_clipping


def layers(*names):
    """A chain of 6 features with some layers in between."""
    torch.manual_seed(0)
    make = {
        "linear": lambda: nn.Linear(6, 6),
        "norm": lambda: nn.LayerNorm(6),
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "sigmoid": nn.Sigmoid,
        "silu": nn.SiLU,
        "flatten": nn.Flatten,
        "view": lambda: nn.Unflatten(1, (2, 3)),
    }
    return nn.Sequential(*(make[name]() for name in names), nn.Linear(6, 3))


CHAINS = [
    ("tanh", "linear", "tanh", "linear"),
    ("linear", "tanh", "tanh", "relu", "sigmoid"),
    ("linear", "flatten", "sigmoid", "norm", "sigmoid", "flatten"),
    ("linear", "silu", "tanh", "silu", "relu"),
    ("linear", "tanh", "view", "tanh", "flatten", "relu"),
]


@pytest.mark.parametrize("names", CHAINS)
@pytest.mark.parametrize("tracked", [False, True])
def test_activations_in_any_order_equal_the_loop(names, tracked):
    torch.manual_seed(1)
    inputs, targets = torch.randn(5, 6), torch.randint(3, (5,))
    before = inputs.clone()
    check_every_clipping(layers(*names), inputs.requires_grad_(tracked), targets, method="program")
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("pooling", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_pooling_sends_the_gradient_to_the_largest(channels, pooling):
    """Two convolutions, of which the second reads what the first has laid out, and a linear map what both have."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(channels, 16, (3, 2), padding=1), nn.Tanh(), pooling, nn.Conv2d(16, 3, 2), nn.GELU(), nn.Flatten()
    )
    inputs, targets = torch.randn(7, channels, 9, 9), torch.randint(3, (7,))
    model = nn.Sequential(*body, nn.Linear(body(inputs).shape[1], 3))
    check_every_clipping(model, inputs, targets, method=("program", "book-keeping"))


def test_an_activation_that_ends_the_model_leaves_the_loss_s_gradient_alone():
    torch.manual_seed(0)
    seen = []

    def loss(outputs, targets):
        outputs.register_hook(lambda gradient: seen.append((gradient, gradient.clone())))
        return (outputs - targets).square().sum(1)

    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    check_every_clipping(model, torch.randn(5, 6), torch.rand(5, 4), method="program", loss=loss)
    assert seen and all(torch.equal(gradient.nan_to_num(), copy.nan_to_num()) for gradient, copy in seen)
