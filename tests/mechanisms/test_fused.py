"""Noise in one pass has the bits of numpy's passes, is compiled only where that pays, and is not used where it errs."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from fedprivacy.mechanisms import fused, lattice_noise
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise, lattice_step

KEY = Keystream.from_seed(1, "client-0")


def released(count, scale, clipping_norm, dtype=torch.float64):
    """A release of sums of which some are out of range or not finite."""
    step = lattice_step(clipping_norm, count)
    sums = 5.0 * torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(count))
    for place, strange in enumerate((math.nan, math.inf, -math.inf, 1e30, -1e30, 2.0**50 * step, -0.0)):
        sums[count // 2 + place] = strange
    return add_lattice_noise(sums, scale, step, KEY.reader(Purpose.NOISE, Position(1, 1)), torch.float32)


def use(monkeypatch, one_pass):
    """Let all noise be drawn in one pass; None: by numpy."""
    monkeypatch.setattr(lattice_noise, "_COMPILED", SimpleNamespace(next=lambda draws: one_pass))


def numba(function):
    """A numba that makes this of every function."""
    return SimpleNamespace(njit=lambda **_: lambda original: function)


@pytest.mark.parametrize(("scale", "clipping_norm"), [(1.0, 1.0), (1e4, 0.01), (0.3, 7.0)])
def test_one_pass_has_the_bits_of_numpy_s_passes(scale, clipping_norm, monkeypatch):
    expected = released(10_007, scale, clipping_norm)
    monkeypatch.setattr(lattice_noise, "_CHUNK", 1001)
    monkeypatch.setattr(lattice_noise, "_BLOCK", 4003)
    use(monkeypatch, fused.release)
    assert torch.equal(released(10_007, scale, clipping_norm), expected)


@pytest.mark.exhaustive
def test_compiled_it_has_them_too(monkeypatch):
    expected = released(300_007, 1.0, 1.0)
    compiled = fused.compile_release()
    assert compiled is not None
    use(monkeypatch, compiled)
    assert torch.equal(released(300_007, 1.0, 1.0), expected)


def test_it_is_compiled_once_and_after_so_many_draws_that_it_pays(monkeypatch):
    made = []
    monkeypatch.setattr(fused, "compile_release", lambda: made.append(1) or fused.release)
    when = fused.WhenWorth()
    assert when.next(2**27) is None and when.next(2**27) is None and not made
    assert when.next(1) is fused.release and when.next(1) is fused.release
    assert made == [1]


def test_what_cannot_be_compiled_or_has_another_bit_is_not_used(monkeypatch):
    def other(words, widths, rectangles, sums, centre, limit, into, outside):
        found = fused.release(words, widths, rectangles, sums, centre, limit, into, outside)
        into[-1] = math.nextafter(into[-1], math.inf) * (1 + 2.0**-22)
        return found

    for wrong in (numba(other), numba(None), None):
        monkeypatch.setitem(sys.modules, "numba", wrong)
        assert fused.compile_release() is None
    monkeypatch.setitem(sys.modules, "numba", numba(fused.release))
    assert fused.compile_release() is fused.release
