"""Convolutional nets, in either layout of images and of patches: the gradient is that of the per-record loop."""

import pytest
import torch
from torch import nn

from tests.gradients.oracle import check_every_clipping


def images(records, channels, size):
    torch.manual_seed(1)
    return torch.randn(records, channels, *size), torch.randint(3, (records,))


@pytest.mark.parametrize("pooling", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_pooling_sends_the_gradient_to_the_largest(channels, pooling):
    """Two convolutions, of which the second reads what the first has laid out, and a linear map what both have."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(channels, 16, (3, 2), padding=1), nn.Tanh(), pooling, nn.Conv2d(16, 3, 2), nn.GELU(), nn.Flatten()
    )
    model = nn.Sequential(*layers, nn.Linear(layers(torch.zeros(1, channels, 9, 9)).shape[1], 3))
    check_every_clipping(model, *images(7, channels, (9, 9)), method=("program", "book-keeping"))
