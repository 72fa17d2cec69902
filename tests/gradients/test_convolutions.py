"""Convolutional nets, in either layout of images and of patches: the gradient is that of the per-record loop."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedprivacy.gradients.rules.convolution import channels_last, faster_with_channels_last
from tests.gradients.oracle import check_every_clipping


def net(channels, widths, kernel, stride, padding, size):
    """Two convolutions; the second reads what the first has laid out, and a linear map what both have."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(channels, widths[0], kernel, stride, padding),
        nn.Tanh(),
        nn.AvgPool2d(2, 1),  # the largest of a window may be decided by rounding, in which two right answers differ
        nn.Conv2d(widths[0], widths[1], 2),
        nn.GELU(),
        nn.Flatten(),
    )
    features = layers(torch.zeros(1, channels, *size)).shape[1]
    return nn.Sequential(*layers, nn.Linear(features, 3))


def images(records, channels, size):
    torch.manual_seed(1)
    return torch.randn(records, channels, *size), torch.randint(3, (records,))


@pytest.mark.exhaustive
@given(
    channels=st.sampled_from([1, 2, 3, 5, 16]),
    widths=st.tuples(st.sampled_from([2, 16, 32]), st.sampled_from([3, 16])),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 2)),
    size=st.tuples(st.integers(8, 11), st.integers(8, 16)),
    records=st.sampled_from([1, 2, 7]),
)
def test_equals_the_loop_whatever_the_layout(channels, widths, kernel, stride, padding, size, records):
    model = net(channels, widths, kernel, stride, padding, size)
    check_every_clipping(model, *images(records, channels, size), method="program")


@pytest.mark.parametrize("pooling", [nn.MaxPool2d(2), nn.MaxPool2d(2, 1), nn.MaxPool2d(3, 2)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_pooling_sends_the_gradient_to_the_largest(channels, pooling):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(channels, 16, 3), nn.Tanh(), pooling, nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(layers(torch.zeros(1, channels, 9, 9)).shape[1], 3))
    check_every_clipping(model, *images(7, channels, (9, 9)), method="program")


@pytest.mark.parametrize(("channels", "width", "last"), [(1, 16, True), (3, 32, True), (1, 6, False), (6, 16, False)])
def test_channels_come_last_where_that_is_faster(channels, width, last):
    layer = nn.Conv2d(channels, width, 3)
    assert faster_with_channels_last(layer) == last
    inputs = torch.randn(4, channels, 8, 8)
    output = layer(channels_last(inputs))
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(output, layer(inputs), atol=1e-5)


@pytest.mark.parametrize("shape", list(itertools.product((1, 3), (1, 2), (1, 4), (1, 5))))
def test_channels_come_last_in_images_of_any_shape(shape):
    inputs = torch.randn(shape)
    turned = channels_last(inputs)
    assert torch.equal(turned, inputs)
    assert turned.permute(0, 2, 3, 1).is_contiguous()
