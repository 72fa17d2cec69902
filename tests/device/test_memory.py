"""On any device: a batch that does not fit is computed in smaller parts, with the same norms."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine
from tests.gradients.oracle import cross_entropy

pytestmark = pytest.mark.soak


def made(device, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 30 * 30, 10)).to(device)
    return GradientEngine(model, cross_entropy, **options)


@contextmanager
def little_memory(device, bytes_left):
    """Leave a GPU's allocator so much; a CPU has what it has."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated(device) + bytes_left) / total)
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)


def test_parts_get_smaller_where_memory_is_short_and_the_norms_stay(device):
    torch.manual_seed(1)
    inputs, targets = torch.randn(300, 3, 32, 32).to(device), torch.arange(300, device=device) % 10
    whole = made(device)
    expected = whole.clip(inputs, targets, 1.0)
    short = made(device, max_memory=2_000_000)
    found = short.clip(inputs, targets, 1.0)
    assert short.sizes[0] < whole.sizes[0]
    with little_memory(device, 400_000_000):
        again = whole.clip(inputs, targets, 1.0)
        fresh = made(device).clip(inputs, targets, 1.0)
    for clipped in (found, again, fresh):
        assert torch.allclose(torch.cat(clipped.squared_norms), torch.cat(expected.squared_norms), rtol=1e-5)
        assert torch.allclose(clipped.total, expected.total, rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.cat(again.squared_norms), torch.cat(expected.squared_norms))
