"""The noise is Gaussian to the last cell and far into the tails, on the lattice, and named by its position alone."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats

from fedprivacy.mechanisms import lattice_noise
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE, SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose, Readers
from fedprivacy.mechanisms.lattice_noise import LATTICE_ALLOWANCE, add_lattice_noise, lattice_step
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


@pytest.mark.exhaustive
def test_the_bulk_fits_at_two_thousand_quantiles():
    cells = np.zeros(2000)
    for x in millions(10):
        cells += np.histogram(stats.norm.cdf(x), 2000, (0.0, 1.0))[0]
    assert stats.chisquare(cells).pvalue > 1e-4


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
    assert rest_masses().sum() == pytest.approx(left / lattice_noise.LAYERS, rel=1e-9)


def rest_masses():
    """Probability that |N(0, 1)| falls beside the rectangles: in the tail, and in each layer above."""
    edges, floors = lattice_noise.EDGES, lattice_noise.FLOORS
    under_curve = 2.0 * np.diff(stats.norm.cdf(edges[::-1]))[::-1]
    in_rectangles = math.sqrt(2 / math.pi) * (edges[:-1] - edges[1:]) * floors[1:-1]
    return np.array([2.0 * stats.norm.sf(edges[0]), *(under_curve - in_rectangles)])


@pytest.mark.exhaustive
def test_what_is_drawn_beside_the_rectangles_has_the_density_that_is_left_there():
    x = lattice_noise.draw_outside(np.arange(MILLION), lambda _, numbers: reader().blocks(numbers))
    assert abs(np.sign(x).sum()) < 4.2 * math.sqrt(x.size)
    size, edges, masses = np.abs(x), lattice_noise.EDGES, rest_masses()
    layer = np.searchsorted(-edges, -size)  # the first edge below: 0 is the tail
    groups = np.arange(len(masses)) // 16
    observed, expected = np.bincount(groups[layer], minlength=groups[-1] + 1), np.bincount(groups, masses)
    assert stats.chisquare(observed, x.size * expected / expected.sum()).pvalue > 1e-4
    for threshold in (5.0, 5.5, 5.8, 6.0):  # as among two billion draws
        expected = x.size * 2.0 * stats.norm.sf(threshold) / masses.sum()
        assert p_poisson((size > threshold).sum(), expected) > 2e-5
    beside = layer > 0
    low = edges[layer[beside]]
    under_curve = 2.0 * (stats.norm.cdf(size[beside]) - stats.norm.cdf(low))
    in_rectangles = math.sqrt(2 / math.pi) * (size[beside] - low) * lattice_noise.FLOORS[layer[beside]]
    place = (under_curve - in_rectangles) / masses[layer[beside]]
    assert stats.kstest(place, "uniform").pvalue > 1e-4


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


# Many releases at once


@pytest.mark.parametrize(("dimension", "dtype"), [(7, torch.float64), (330, torch.float32), (40_001, torch.float64)])
def test_many_rows_receive_the_noise_of_each_alone(dimension, dtype):
    keystreams = [KEY.of(f"client-{number}") for number in range(40 if dimension < 1000 else 3)]
    totals = 3.0 * torch.randn(len(keystreams), dimension, generator=torch.Generator().manual_seed(0)).to(dtype)
    totals[0, 0], totals[1, 0], totals[2, 0] = math.nan, math.inf, 1e30
    scales = np.linspace(0.5, 4.0, len(keystreams))
    steps = np.array([lattice_step(norm, dimension) for norm in np.geomspace(0.1, 10.0, len(keystreams))])
    readers = Readers(keystreams, Purpose.NOISE, HERE)
    released = lattice_noise.add_lattice_noise_by_row(totals, scales, steps, readers)
    for row, total, scale, step, keystream in zip(released, totals, scales, steps, keystreams, strict=True):
        alone = add_lattice_noise(total, scale, step, reader(key=keystream), torch.float32)
        assert torch.equal(row, alone)


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
    total = 10.0 * torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    released = add_lattice_noise(total.to(dtype), 1.0, 2.0**-12, reader())
    assert released.dtype == dtype and released.shape == total.shape
    steps = released.double() * 2.0**12
    assert torch.equal(steps, steps.round())
    assert torch.allclose(released.double() - total, torch.from_numpy(draws(5000, step=2.0**-12)), atol=0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_noise_is_the_same_whatever_the_sum_and_only_the_result_is_rounded(dtype):
    """So neighbouring sums reach the same values: around 0, x = 0 reached floats that x = C could not."""
    total, step = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype), 2.0**-30
    exact = torch.round(total.double() / step) * step + torch.from_numpy(draws(100_000, step=step))
    assert torch.equal(add_lattice_noise(total, 1.0, step, reader()), exact.to(dtype))


def test_a_sum_out_of_range_saturates_and_one_that_is_not_finite_counts_as_zero():
    total = torch.tensor([1e30, -1e30, math.nan, math.inf, -math.inf, 5.0], dtype=torch.float32)
    step = 2.0**-10
    released = add_lattice_noise(total, 1.0, step, reader()).numpy()
    limit = lattice_noise.LARGEST_SUM * step
    assert released[:2].tolist() == [limit, -limit]
    assert np.array_equal(released[2:].astype(np.float64), np.array([0, 0, 0, 5.0]) + draws(6, step=step)[2:])


@pytest.mark.parametrize("sums", [[2.0**51], [-(2.0**51)], [2.0**51, -1.0], [-(2.0**51), 1.0], [2.0**80, -(2.0**80)]])
def test_a_sum_out_of_range_at_either_end_saturates_where_whole_steps_can_still_be_told(sums):
    """Float64 holds no odd steps beyond the centre's range, so the values that can be reached would show the sum."""
    total = torch.tensor(sums, dtype=torch.float64)
    limited = total.clip(-(2.0**50), 2.0**50)
    released = add_lattice_noise(total, 100.0, 1.0, reader())
    assert torch.equal(released, add_lattice_noise(limited, 100.0, 1.0, reader()))
    assert torch.equal(released - limited, torch.from_numpy(draws(len(sums), scale=100.0, step=1.0)))


def test_shape_and_layout_do_not_matter_and_the_sum_is_left_alone():
    total = torch.arange(12.0).reshape(3, 4)
    flat = add_lattice_noise(total.flatten(), 1.0, FINE, reader())
    assert torch.equal(add_lattice_noise(total, 1.0, FINE, reader()), flat.reshape(3, 4))
    assert torch.equal(add_lattice_noise(total.T.contiguous().T, 1.0, FINE, reader()), flat.reshape(3, 4))
    assert torch.equal(total, torch.arange(12.0).reshape(3, 4))
    assert add_lattice_noise(torch.zeros(0), 1.0, FINE, reader()).shape == (0,)
    assert add_lattice_noise(torch.tensor(1.0, requires_grad=True), 1.0, FINE, reader()).shape == ()


# Randomness and memory


@pytest.mark.parametrize(("threads", "block"), [(1, 50_000), (2, 40_001), (3, 50_000)])
def test_noise_does_not_depend_on_threads_blocks_and_chunks(monkeypatch, threads, block):
    whole = draws(100_003)
    monkeypatch.setattr(lattice_noise, "_BLOCK", block)
    monkeypatch.setattr(lattice_noise, "_CHUNK", 1001)
    monkeypatch.setattr(lattice_noise.torch, "get_num_threads", lambda: threads)
    assert np.array_equal(whole, draws(100_003))


def test_a_fault_in_a_thread_is_not_lost(monkeypatch):
    monkeypatch.setattr(lattice_noise, "_BLOCK", 1000)
    monkeypatch.setattr(lattice_noise.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(lattice_noise, "_in_whole_steps", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        draws(5000)


def test_memory_does_not_grow_with_the_sum(monkeypatch):
    monkeypatch.setattr(lattice_noise.torch, "get_num_threads", lambda: 1)  # each needs room of its own
    total = torch.zeros(8 * MILLION)
    tracemalloc.start()
    add_lattice_noise(total, 1.0, FINE, reader())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6  # besides the result, which is PyTorch's


# The mechanism


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_release_has_the_event_s_noise_for_the_clipping_norm_and_its_allowance_in_one_type(dtype):
    mechanism = SampledGaussianSum(PoissonSampledGaussian(0.5, 1.5), clipping_norm=0.7)
    total = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    released = mechanism.release(lambda sample, clipping_norm: total, 10, KEY, HERE)
    scale = 1.5 * 0.7 * (1 + 1.5 * 2.0**-10)
    assert torch.equal(released, add_lattice_noise(total, scale, lattice_step(0.7, 50), reader(), torch.float32))
