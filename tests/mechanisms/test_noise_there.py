"""Noise that is added where the sum is has the host's bits, and a GPU that has others is not used for it."""

import math

import pytest
import torch

from fedprivacy.mechanisms import lattice_noise
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import LARGEST_SUM, add_lattice_noise, add_lattice_noise_there, lattice_step

KEY = Keystream.from_seed(1, "client-0")
STRANGE = math.nan, math.inf, -math.inf, 1e30, -1e30, -0.0


def reader():
    return KEY.reader(Purpose.NOISE, Position(round=3, step=2))


def sums_of(count, dtype, step):
    """Sums of which some are out of range, or not finite, or halfway between two steps."""
    sums = 5.0 * torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    strange = torch.tensor([*STRANGE, LARGEST_SUM * step, 2.5 * step, -1.5 * step], dtype=torch.float64)
    sums[count // 2 : count // 2 + len(strange)] = strange[: count - count // 2]
    return sums.to(dtype)


@pytest.mark.parametrize(("scale", "clipping_norm"), [(1.0, 1.0), (1e4, 0.01), (0.3, 7.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 62, 40_007])
def test_it_has_the_host_s_bits(count, dtype, scale, clipping_norm, monkeypatch):
    monkeypatch.setattr(lattice_noise, "_THERE", 9001)
    monkeypatch.setattr(lattice_noise, "_BLOCK", 4003)
    monkeypatch.setattr(lattice_noise, "_CHUNK", 1001)
    monkeypatch.setattr(lattice_noise.torch, "get_num_threads", lambda: 2)
    step = lattice_step(clipping_norm, count)
    sums = sums_of(count, dtype, step)
    for kind in (None, torch.float32, torch.bfloat16):
        there, here = (add(sums, scale, step, reader(), kind) for add in (add_lattice_noise_there, add_lattice_noise))
        assert there.dtype == here.dtype
        assert torch.equal(there, here)


def test_shape_and_layout_do_not_matter_and_the_sum_is_left_alone():
    total = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    for sums in (
        total,
        total.T,
        total[:, ::2],
        torch.tensor(1.0, requires_grad=True),
        torch.zeros(0),
        torch.zeros(0, 3),
    ):
        there = add_lattice_noise_there(sums, 1.0, 2.0**-30, reader())
        assert torch.equal(there, add_lattice_noise(sums, 1.0, 2.0**-30, reader()))
        assert not there.requires_grad
    assert torch.equal(total, torch.arange(12.0).reshape(3, 4))


class OnGpu(torch.Tensor):
    """Sums that say that they are on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(("device", "error"), [("cpu:0", 0.0), ("cpu", 2.0**-16)])
def test_a_gpu_adds_the_noise_if_made_up_sums_get_the_host_s_bits_there(device, error, monkeypatch, caplog):
    asked = []

    def there(total, *rest):
        asked.append(total)
        released = add_lattice_noise(total.as_subclass(torch.Tensor), *rest)
        return released + error * (torch.arange(len(released)) == len(released) - 1)

    monkeypatch.setattr(lattice_noise, "add_lattice_noise_there", there)
    monkeypatch.setattr(OnGpu, "device", torch.device(device), raising=False)
    total = sums_of(1000, torch.float64, 2.0**-16).as_subclass(OnGpu)
    for _ in range(2):
        released = add_lattice_noise(total, 0.5, 2.0**-16, reader(), torch.float32)
        expected = add_lattice_noise(total.as_subclass(torch.Tensor), 0.5, 2.0**-16, reader(), torch.float32)
        assert torch.equal(released.as_subclass(torch.Tensor), expected)
    assert sum(each is total for each in asked) == (0 if error else 2)
    assert len(asked) == (1 if error else 4)  # made-up sums of two types were tried, once
    assert ("other bits" in caplog.text) == bool(error)
