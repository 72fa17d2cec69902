"""Convolutional nets, in either layout of images and of patches: the gradient is that of the per-record loop."""

import itertools

import pytest
import torch
from torch import nn

from fedprivacy.gradients.rules.convolution import channels_last, faster_with_channels_last
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


@pytest.mark.parametrize(("channels", "width", "last"), [(1, 16, True), (3, 32, True), (1, 6, False), (6, 16, False)])
def test_channels_come_last_where_that_is_faster(channels, width, last):
    layer = nn.Conv2d(channels, width, 3)
    assert faster_with_channels_last(layer) == last
    inputs = torch.randn(4, channels, 8, 8)
    output = layer(channels_last(inputs))
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(output, layer(inputs), atol=1e-5)
    for shape in itertools.product((1, 3), (1, 2), (1, 4), (1, 5)):
        turned = channels_last(torch.ones(shape))
        assert torch.equal(turned, torch.ones(shape)) and turned.permute(0, 2, 3, 1).is_contiguous()
