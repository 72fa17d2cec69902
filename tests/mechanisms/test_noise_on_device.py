"""Noise that is added where the sum is has the host's bits, and a GPU that has others is not used for it."""

import math

import pytest
import torch

from fedprivacy.mechanisms import lattice_noise
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import (
    LARGEST_SUM,
    add_lattice_noise,
    add_lattice_noise_on_device,
    lattice_step,
)

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
@pytest.mark.parametrize("count", [1, 40_007])
def test_it_has_the_host_s_bits(count, dtype, scale, clipping_norm, monkeypatch):
    monkeypatch.setattr(lattice_noise, "_ON_DEVICE", 9001)
    monkeypatch.setattr(lattice_noise, "_BLOCK", 4003)
    monkeypatch.setattr(lattice_noise, "_CHUNK", 1001)
    monkeypatch.setattr(lattice_noise.torch, "get_num_threads", lambda: 2)
    step = lattice_step(clipping_norm, count)
    sums = sums_of(count, dtype, step)
    for kind in (None, torch.float32, torch.bfloat16):
        there, here = (
            add(sums, scale, step, reader(), kind) for add in (add_lattice_noise_on_device, add_lattice_noise)
        )
        assert there.dtype == here.dtype
        assert torch.equal(there, here)


class OnGpu(torch.Tensor):
    """Sums that say that they are on a GPU."""

    is_cuda = True


def on_gpu(monkeypatch, device, add):
    """Let `add` be what a GPU of this name computes; return sums that it holds."""
    monkeypatch.setattr(lattice_noise, "add_lattice_noise_on_device", add)
    monkeypatch.setattr(OnGpu, "device", torch.device(device), raising=False)
    return sums_of(1000, torch.float64, 2.0**-16).as_subclass(OnGpu)


def on_host(total, *rest):
    return add_lattice_noise(total.as_subclass(torch.Tensor), *rest)


# Each GPU is tried once in a process, so each test has one of its own.


def test_a_gpu_adds_the_noise_if_made_up_sums_get_the_host_s_bits_there(monkeypatch):
    asked = []
    total = on_gpu(monkeypatch, "cpu:0", lambda total, *rest: asked.append(total) or on_host(total, *rest))
    for _ in range(2):
        released = add_lattice_noise(total, 0.5, 2.0**-16, reader(), torch.float32)
        assert torch.equal(released, on_host(total, 0.5, 2.0**-16, reader(), torch.float32))
    assert [each is total for each in asked] == [False, False, False, True, True]


@pytest.mark.parametrize("wrong", ["draws", "a bit", "a bit in float32", "one of 4000 draws"])
def test_a_gpu_with_other_bits_adds_no_noise(wrong, monkeypatch, caplog):
    asked = []

    def add(total, scale, step, read, dtype=None):
        asked.append(total)
        if wrong == "draws":
            return on_host(total, scale * (1.0 + 2.0**-40), step, read, dtype)
        released = on_host(total, scale, step, read, dtype)
        if wrong == "a bit in float32" and dtype == torch.float64:
            return released
        some = released[3999::4000] if wrong == "one of 4000 draws" else released[-1:]
        some.copy_(some.nextafter(torch.full((1,), math.inf, dtype=released.dtype)))
        return released

    total = on_gpu(monkeypatch, "cpu", add)
    lattice_noise.computes_the_same_bits.cache_clear()
    released = add_lattice_noise(total, 0.5, 2.0**-16, reader(), torch.float32)
    assert torch.equal(released, on_host(total, 0.5, 2.0**-16, reader(), torch.float32))
    assert "other bits" in caplog.text
    assert asked and all(each is not total for each in asked)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("CUDA error: out of memory")])
def test_a_gpu_without_memory_for_it_leaves_the_noise_to_the_host(error, monkeypatch):
    def full(*_):
        raise error

    total = on_gpu(monkeypatch, "cpu", full)
    lattice_noise.computes_the_same_bits.cache_clear()
    released = add_lattice_noise(total, 0.5, 2.0**-16, reader(), torch.float32)
    assert torch.equal(released, on_host(total, 0.5, 2.0**-16, reader(), torch.float32))


def test_another_error_of_a_gpu_is_not_hidden(monkeypatch):
    def broken(*_):
        raise RuntimeError("device-side assert")

    total = on_gpu(monkeypatch, "cpu", broken)
    lattice_noise.computes_the_same_bits.cache_clear()
    with pytest.raises(RuntimeError, match="device-side assert"):
        add_lattice_noise(total, 0.5, 2.0**-16, reader(), torch.float32)
