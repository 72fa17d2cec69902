"""The noise is Gaussian far into the tails, on the lattice, named by its position alone, and the same everywhere."""

import itertools
import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import stats

from fedprivacy.mechanisms import fused, lattice_noise
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE, SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose, Readers
from fedprivacy.mechanisms.lattice_noise import (
    LARGEST_SUM,
    LATTICE_ALLOWANCE,
    add_lattice_noise,
    add_lattice_noise_on_device,
    lattice_step,
)
from fedprivacy.values.events import CLIPPING_NORMS, PoissonSampledGaussian

KEY = Keystream.from_seed(1, "client-0")
HERE = Position(round=3, step=2)
FINE = 2.0**-40
MILLION = 1_000_000

# Seeds are fixed. Where a figure is a p-value, an unlucky seed fails with probability 1e-4 or less.


def reader(position=HERE, key=KEY):
    return key.reader(Purpose.NOISE, position)


def draws(count, scale=1.0, step=FINE, position=HERE, key=KEY):
    """The noise alone."""
    return add_lattice_noise(torch.zeros(count, dtype=torch.float64), scale, step, reader(position, key)).numpy()


def millions(count):
    """Draw so many millions from N(0, 1), a million at a time."""
    return (draws(MILLION, position=Position(1, step)) for step in range(1, count + 1))


def p_poisson(count, expected):
    return 2 * min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected))


# The Gaussian


@pytest.mark.parametrize("scale", [0.5, 1.0, 8.0])
def test_every_whole_number_of_steps_occurs_as_often_as_for_a_rounded_gaussian(scale):
    x = draws(2 * MILLION, scale * FINE) / FINE
    most = int(3.0 * scale)
    cells = np.arange(-most, most + 2) - 0.5
    observed = np.array([(x < cells[0]).sum(), *np.histogram(x, cells)[0], (x > cells[-1]).sum()])
    expected = x.size * np.diff(stats.norm.cdf([-np.inf, *cells, np.inf], scale=scale))
    assert stats.chisquare(observed, expected).pvalue > 1e-4


LOWEST = lattice_noise.EDGES[40::-1]
"""Edges beside which a rectangle covers little of its layer."""


@pytest.fixture(scope="module")
def far():
    """The draws beyond the lowest edges among twenty million."""
    return np.concatenate([x[np.abs(x) > LOWEST[0]] for x in millions(20)])


@pytest.mark.exhaustive
def test_tails_are_as_heavy_as_a_gaussian_s(far):
    for threshold in (3.5, 4.0, lattice_noise.TAIL, 4.5, 5.0):
        for side in (far, -far):
            assert p_poisson((side > threshold).sum(), 20 * MILLION * stats.norm.sf(threshold)) > 1e-5


@pytest.mark.exhaustive
def test_the_density_is_smooth_across_the_lowest_edges(far):
    """A fault beside the rectangles there would show in all draws."""
    x = np.abs(far)
    cells = np.unique(np.concatenate([np.linspace(a, b, 5) for a, b in itertools.pairwise(LOWEST)]))
    expected = np.diff(stats.norm.cdf([*cells, np.inf]))
    observed = np.array([*np.histogram(x, cells)[0], (x > cells[-1]).sum()])
    assert stats.chisquare(observed, x.size * expected / expected.sum()).pvalue > 1e-4


def test_neighbouring_draws_are_independent():
    x = draws(2 * MILLION)
    cells = (stats.norm.cdf(x) * 16).astype(int)
    for lag in (1, 2, 3, 4):
        pairs = np.bincount(16 * cells[:-lag] + cells[lag:], minlength=256)
        assert stats.chisquare(pairs).pvalue > 2e-5
        assert abs((x[:-lag] * x[lag:]).sum()) < 4.2 * math.sqrt(x.size)


# Its parts


def test_rectangles_are_equal_and_meet_the_density():
    edges, floors = lattice_noise.EDGES[:-1], lattice_noise.FLOORS[:-1]
    share = math.sqrt(math.pi / 2) / lattice_noise.LAYERS
    assert np.allclose(edges * np.diff(floors), share, rtol=1e-11)
    assert np.allclose(np.exp(-0.5 * edges**2), floors[1:], rtol=1e-13)
    assert len(edges) == lattice_noise.RECTANGLES
    left = lattice_noise.LAYERS - lattice_noise.RECTANGLES
    assert np.array_equal(lattice_noise.WIDTHS, [*(edges * 2.0**-63), *np.zeros(left)])


def test_no_block_of_the_keystream_is_read_for_two_coordinates():
    """Neither by several tries beside the rectangles, nor where first words are: noise would be correlated."""
    numbers = []

    def blocks(_, asked):
        numbers.extend(asked.ravel().tolist())
        return reader().blocks(asked)

    lattice_noise.draw_outside(np.arange(2000), blocks)
    assert len(set(numbers)) == len(numbers) > 2000 * 8  # some need more than the first tries
    assert min(numbers) >= 2**62, "half of the number of coordinates is less"


def tried(*words):
    """The draws of one try, and which of them are kept, for each column of words."""
    return lattice_noise.try_draws(
        np.stack(np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in words)))
    )


def test_tail_draws_have_the_distribution_of_a_gaussian_s_tail():
    across, up, sign = KEY.bits(Purpose.NOISE, HERE, 6 * MILLION).reshape(3, -1)
    drawn, kept = tried(0, across, up, sign)  # the smallest uniform chooses the tail
    x = np.abs(drawn[kept])
    assert x.min() > lattice_noise.TAIL
    exact = math.sqrt(2 * math.pi) * stats.norm.sf(lattice_noise.TAIL) / lattice_noise.TAIL_AREA
    assert stats.binomtest(int(kept.sum()), len(kept), exact).pvalue > 1e-4
    among = stats.norm.sf(x) / stats.norm.sf(lattice_noise.TAIL)
    assert stats.kstest(among[:500_000], "uniform").pvalue > 1e-4
    for threshold in (5.0, 5.8, 6.0, 6.5, 7.0):
        expected = x.size * stats.norm.sf(threshold) / stats.norm.sf(lattice_noise.TAIL)
        assert p_poisson((x > threshold).sum(), expected) > 2e-5
    drawn, kept = tried([0], [int(math.exp(-9.4 * lattice_noise.TAIL) * 2.0**64)], [0], [0])
    assert kept.all() and drawn[0] > 13.0


@pytest.mark.parametrize("fine", [0, 1])
@pytest.mark.parametrize("sum", [2.0**52, -(2.0**52)])
def test_a_row_with_a_fine_lattice_saturates_beside_one_with_a_coarse_lattice(fine, sum):
    """In its own steps: in the other's, its sum is small."""
    steps, totals = np.array([2.0**-10, 2.0**-10]), torch.ones(2, 3, dtype=torch.float64)
    steps[fine], totals[fine] = 2.0**-30, sum * 2.0**-30
    keystreams = [KEY.of("one"), KEY.of("other")]
    released = lattice_noise.add_lattice_noise_by_row(
        totals, 100.0 * steps, steps, Readers(keystreams, Purpose.NOISE, HERE)
    )
    limited = totals.clone()
    limited[fine] = math.copysign(2.0**50, sum) * 2.0**-30
    for row, total, step, keystream in zip(released, limited, steps, keystreams, strict=True):
        assert torch.equal(row, add_lattice_noise(total, 100.0 * step, step, reader(key=keystream), torch.float32))


# The lattice


@pytest.mark.parametrize("dimension", [1, 62, 10**12])
@pytest.mark.parametrize("clipping_norm", [*CLIPPING_NORMS, 0.1])
def test_the_step_is_the_largest_power_of_two_within_the_lattice_s_allowance(clipping_norm, dimension):
    step = lattice_step(clipping_norm, dimension)
    assert math.frexp(step)[0] == 0.5
    room = LATTICE_ALLOWANCE * clipping_norm
    assert math.sqrt(dimension) * step <= room < 2 * math.sqrt(dimension) * step
    farthest = 15 * 1e4 * clipping_norm * (1 + ROUNDING_ALLOWANCE) / step
    assert farthest < 2**52  # noise is whole numbers that float64 holds, at the largest noise multiplier too


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_released_value_is_a_whole_number_of_steps(dtype):
    """So neighbouring sums reach the same values: around 0, x = 0 reached floats that x = C could not."""
    total, step = 10.0 * torch.randn(50_000, generator=torch.Generator().manual_seed(0)).to(dtype), 2.0**-12
    released = add_lattice_noise(total, 1.0, step, reader())
    exact = torch.round(total.double() / step) * step + torch.from_numpy(draws(50_000, step=step))
    assert torch.equal(released, exact.to(dtype))
    assert torch.equal(released.double(), torch.round(released.double() / step) * step)


@pytest.mark.parametrize(
    "sums",
    [[2.0**51], [-(2.0**51)], [2.0**51, -1.0], [-(2.0**51), 1.0], [2.0**80, -(2.0**80)], [math.nan, math.inf, 5.0]],
)
def test_a_sum_out_of_range_at_either_end_saturates_where_whole_steps_can_still_be_told(sums):
    """Float64 holds no odd steps beyond the centre's range, so the values that can be reached would show the sum."""
    total = torch.tensor(sums, dtype=torch.float64)
    limited = total.where(total.isfinite(), 0.0).clip(-(2.0**50), 2.0**50)
    released = add_lattice_noise(total, 100.0, 1.0, reader())
    assert torch.equal(released, add_lattice_noise(limited, 100.0, 1.0, reader()))
    assert torch.equal(released - limited, torch.from_numpy(draws(len(sums), scale=100.0, step=1.0)))


# Randomness and memory


def test_a_fault_in_a_thread_is_not_lost(monkeypatch):
    monkeypatch.setattr(lattice_noise, "_BLOCK", 1000)
    monkeypatch.setattr(lattice_noise.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(lattice_noise, "_in_whole_steps", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        draws(5000)


# The mechanism


@pytest.mark.parametrize("clipping_norm", [0.0, -1.0, 0.5e-6, 2e6, math.inf, math.nan])
def test_a_clipping_norm_that_no_noise_fits_is_refused(clipping_norm):
    """Catches: a norm of zero or below, whose noise is none; one so large that float32 holds no sum."""
    with pytest.raises(ValueError, match="clipping_norm"):
        SampledGaussianSum(PoissonSampledGaussian(0.5, 1.0), clipping_norm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_release_has_the_event_s_noise_for_the_clipping_norm_and_its_allowance_in_one_type(dtype):
    mechanism = SampledGaussianSum(PoissonSampledGaussian(0.5, 1.5), clipping_norm=0.7)
    total = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    released = mechanism.release(lambda sample, clipping_norm: total, 10, KEY, HERE)
    scale = 1.5 * 0.7 * (1 + 1.5 * 2.0**-10)
    assert torch.equal(released, add_lattice_noise(total, scale, lattice_step(0.7, 50), reader(), torch.float32))


# Elsewhere than in numpy's passes

STRANGE = math.nan, math.inf, -math.inf, 1e30, -1e30, -0.0


def sums_of(count, dtype, step):
    """Sums of which some are out of range, or not finite, or halfway between two steps."""
    sums = 5.0 * torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    strange = torch.tensor([*STRANGE, LARGEST_SUM * step, 2.5 * step, -1.5 * step], dtype=torch.float64)
    sums[count // 2 : count // 2 + len(strange)] = strange[: count - count // 2]
    return sums.to(dtype)


def released(count, scale, clipping_norm):
    """A release of sums of which some are out of range or not finite."""
    step = lattice_step(clipping_norm, count)
    return add_lattice_noise(sums_of(count, torch.float64, step), scale, step, reader(), torch.float32)


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


def on_gpu(monkeypatch, add):
    """Let `add` be what a GPU computes that nobody has tried yet; return sums that it holds."""
    lattice_noise.computes_the_same_bits.cache_clear()
    monkeypatch.setattr(lattice_noise, "add_lattice_noise_on_device", add)
    monkeypatch.setattr(OnGpu, "device", torch.device("cpu"), raising=False)
    return sums_of(1000, torch.float64, 2.0**-16).as_subclass(OnGpu)


def on_host(total, *rest):
    return add_lattice_noise(total.as_subclass(torch.Tensor), *rest)


def check_release(total):
    """Assert that sums on a GPU are released with the host's bits."""
    found, expected = (add(total, 0.5, 2.0**-16, reader(), torch.float32) for add in (add_lattice_noise, on_host))
    assert torch.equal(found, expected)


def test_a_gpu_adds_the_noise_if_made_up_sums_get_the_host_s_bits_there(monkeypatch):
    asked = []
    total = on_gpu(monkeypatch, lambda total, *rest: asked.append(total) or on_host(total, *rest))
    for _ in range(2):
        check_release(total)
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

    total = on_gpu(monkeypatch, add)
    check_release(total)
    assert "other bits" in caplog.text
    assert asked and all(each is not total for each in asked)


@pytest.mark.parametrize("error", ["full", "CUDA error: out of memory", "device-side assert"])
def test_a_gpu_without_memory_for_it_leaves_the_noise_to_the_host_and_no_other_error_is_hidden(error, monkeypatch):
    raised = torch.OutOfMemoryError(error) if error == "full" else RuntimeError(error)
    total = on_gpu(monkeypatch, mock.Mock(side_effect=raised))
    with pytest.raises(RuntimeError, match=error) if error == "device-side assert" else nullcontext():
        check_release(total)
