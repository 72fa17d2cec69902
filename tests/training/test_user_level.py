"""A trusted server's noisy average: what one client can move, how much noise there is, who joins, where C goes."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise, lattice_step
from fedprivacy.training import user_level
from fedprivacy.training.user_level import (
    CLIENT_ALLOWANCE,
    MOST_OF_THE_COUNT,
    ClippedClientSum,
    clipped_update,
    count_and_sum,
)
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

KEY, HERE = Keystream.from_seed(1, "server"), Position(1, 1)
FALSE_ALARM = 1e-4  # of every statistical test here; seeds are fixed


def mechanism(rate=0.5, noise_multiplier=1.0, clients=128, adaptive=None):  # dividing by 64 is exact
    return ClippedClientSum(PoissonSampledGaussian(rate, noise_multiplier), clients, adaptive)


def released(updates, clipping_norm=1.0, made=None, dimension=None, position=HERE, key=KEY):
    made = made or mechanism()
    return made.release(updates, dimension or updates[0].size, clipping_norm, key, position)


def moved_by(updates, index, clipping_norm, made):
    """The vector that one client adds to the sum: both releases have the same noise."""
    others = [*updates[:index], *updates[index + 1 :]]
    means = [released(some, clipping_norm, made, updates[0].size).mean for some in (updates, others)]
    return (means[0] - means[1]) * made.expected_clients


def hostile(dimension):
    """Updates of ordinary clients, and of such as want to be heard more than they may."""
    generator = np.random.default_rng(0)
    ordinary = generator.standard_normal((6, dimension)) * np.logspace(-4, 6, 6)[:, None]
    spike, nan = np.zeros(dimension), np.ones(dimension)
    spike[3], nan[5] = 1e300, math.nan
    infinite = np.full(dimension, -math.inf)
    extreme = [np.full(dimension, value) for value in (0.0, 5e-324, 1e-200, 1e155, -1.7e308, 1.0)]
    at_the_bound = ordinary[0] / np.linalg.norm(ordinary[0])
    return [*ordinary, spike, nan, infinite, *extreme, at_the_bound, 1e15 * generator.choice([-1.0, 1.0], dimension)]


@pytest.mark.parametrize(("dimension", "clipping_norm"), [(7, 1e-6), (7, 0.3), (4096, 0.3), (7, 1e6)])
@pytest.mark.parametrize("adaptive", [None, count_and_sum(1.0, 50.0)], ids=["fixed", "adaptive"])
def test_no_client_moves_the_sum_by_more_than_its_part_whatever_it_sends(dimension, clipping_norm, adaptive):
    """Catches: no clipping; a norm that overflows to nothing or is not a number; sums that round."""
    updates, made = hostile(dimension), mechanism(noise_multiplier=0.1, adaptive=adaptive)
    for index in range(len(updates)):
        assert np.linalg.norm(moved_by(updates, index, clipping_norm, made)) <= clipping_norm * (1 + CLIENT_ALLOWANCE)


def test_with_its_count_a_client_has_exactly_the_mechanism_s_sensitivity():
    """Catches: a count that is not in the bound. The vector that noise is added to has one coordinate more."""
    adaptive = count_and_sum(0.8, 40.0)
    longest, steps = adaptive.sensitivity(0.3), []
    for update in hostile(50):
        clipped, within = clipped_update(update, 0.3)
        count = 0.0 if within is None else 0.5 * adaptive.weight(0.3)
        steps.append(math.hypot(float(np.linalg.norm(clipped)), count))
    assert max(steps) == pytest.approx(longest, rel=1e-12)


def test_a_client_whose_update_is_not_finite_moves_nothing_and_the_rest_is_released():
    ordinary = [np.array([3.0, 4.0]), np.array([0.1, 0.0])]
    for bad in (math.nan, math.inf, -math.inf):
        for made in (mechanism(), mechanism(adaptive=count_and_sum(1.0, 50.0))):
            both = released([*ordinary, np.array([bad, 0.0])], made=made)
            alone = released(ordinary, made=made)
            assert np.array_equal(both.mean, alone.mean) and both.clipping_norm == alone.clipping_norm


@pytest.mark.parametrize(("joined", "clipping_norm", "noise_multiplier"), [(0, 1.0, 1.0), (1, 0.02, 3.0), (40, 1, 3)])
def test_the_average_is_gaussian_around_the_sum_over_the_expected_cohort(joined, clipping_norm, noise_multiplier):
    """Catches: noise forgotten, or scaled by who joined; a division by the true number of clients."""
    dimension, made = 40_000, mechanism(0.25, noise_multiplier, clients=80)
    updates = [np.full(dimension, 1.0)] * joined  # each is clipped to C / sqrt(d) in every coordinate
    mean = released(updates, clipping_norm, made, dimension, Position(joined, 1)).mean
    centre = joined * clipping_norm / math.sqrt(dimension) / 20.0  # q times the public number of clients
    deviation = noise_multiplier * clipping_norm * (1 + CLIENT_ALLOWANCE) / 20.0
    assert stats.kstest((mean - centre) / deviation, stats.norm.cdf).pvalue > FALSE_ALARM
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], dimension)
    assert low <= ((mean - centre) ** 2).sum() / deviation**2 <= high


# --- who joins ------------------------------------------------------------------------------------------------------

CLIENTS = [f"client-{number}" for number in range(200)]


def cohorts(rate, rounds, key=KEY):
    made = mechanism(rate)
    drawn = [made.draw_clients(CLIENTS, key, Position(number, 1)) for number in range(rounds)]
    return np.array([[client in joined for client in CLIENTS] for joined in drawn])


def test_clients_join_by_poisson_sampling():
    """Catches: cohorts of a fixed size, which are another mechanism; some clients asked more often than others."""
    drawn = cohorts(0.1, 2_000)
    sizes = np.bincount(drawn.sum(axis=1), minlength=60)
    expected = 2_000 * stats.binom.pmf(np.arange(60), 200, 0.1)
    kept = expected > 5
    observed = [*sizes[kept], sizes[~kept].sum()]
    assert stats.chisquare(observed, [*expected[kept], 2_000 - expected[kept].sum()]).pvalue > FALSE_ALARM
    each = drawn.sum(axis=0)
    assert stats.chi2.sf(((each - 200) ** 2 / 180).sum(), 200) > FALSE_ALARM


def test_whether_a_client_joins_depends_on_the_key_and_not_on_who_else_there_is():
    made = mechanism(0.3)
    everybody = made.draw_clients(CLIENTS, KEY, HERE)
    for gone in CLIENTS[:20]:
        others = [client for client in CLIENTS if client != gone]
        assert made.draw_clients(others, KEY, HERE) == everybody - {gone}
    assert mechanism(1.0).draw_clients(CLIENTS, KEY, HERE) == set(CLIENTS)
    assert made.draw_clients(CLIENTS, KEY, Position(HERE.round, 2)) != everybody, "another attempt"
    assert made.draw_clients(CLIENTS, Keystream.secret(), HERE) != made.draw_clients(CLIENTS, Keystream.secret(), HERE)


# --- adaptive clipping ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise_multiplier", "count_noise"), [(1.0, 5.0), (0.5, 0.3), (3.0, 200.0)])
def test_the_noise_is_split_as_andrew_et_al_split_it(noise_multiplier, count_noise):
    """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2): the sum's noise multiplier; sigma_b: the count's deviation."""
    adaptive, clipping_norm = count_and_sum(noise_multiplier, 100.0, count_noise=count_noise), 0.7
    deviation = noise_multiplier * adaptive.sensitivity(clipping_norm)  # in every coordinate of the one vector
    z_delta = (noise_multiplier**-2 - (2.0 * count_noise) ** -2) ** -0.5
    assert deviation / clipping_norm == pytest.approx(z_delta, rel=1e-12)
    assert deviation / adaptive.weight(clipping_norm) == pytest.approx(count_noise, rel=1e-12)
    tff = count_and_sum(1.2, 120.0)  # dp_aggregator(1.2, 120): sigma_b is 120 / 20, and z_delta 1.2 / sqrt(1 - .01)
    assert 1.2 * tff.sensitivity(1.0) == pytest.approx(1.2 / math.sqrt(0.99), rel=1e-12)
    assert 1.2 * tff.sensitivity(1.0) / tff.weight(1.0) == pytest.approx(6.0, rel=1e-12)


@pytest.mark.parametrize("allowance", [2.0**-13, 0.25])
@pytest.mark.parametrize("adaptive", [None, count_and_sum(1.5, 50.0)], ids=["fixed", "adaptive"])
def test_the_noise_covers_the_largest_part_of_a_client_with_its_rounding(adaptive, allowance, monkeypatch):
    """With a larger allowance the noise is larger by as much: else a missing factor of 1.0001 would not show."""
    monkeypatch.setattr(user_level, "CLIENT_ALLOWANCE", allowance)
    made, dimension = mechanism(noise_multiplier=1.5, adaptive=adaptive), 100_000
    noise = released([], 0.7, made, dimension).mean * made.expected_clients
    longest = adaptive.sensitivity(0.7) if adaptive else 0.7
    size, step = dimension + (adaptive is not None), lattice_step(longest, dimension + (adaptive is not None))
    read = KEY.reader(Purpose.NOISE, HERE)
    exact = add_lattice_noise(torch.zeros(size).double(), 1.5 * longest * (1.0 + allowance), step, read)
    assert np.array_equal(noise, exact[:dimension].numpy())
    assert noise.std() == pytest.approx(1.5 * longest * (1 + allowance), rel=0.01)


def test_the_covering_allowance_is_that_of_rounding_each_coordinate_by_half_a_step():
    for dimension, norm in ((1, 0.7), (7, 1e-6), (4096, 1e6)):
        rounded = math.sqrt(dimension) * lattice_step(norm, dimension) / 2
        assert norm * (1 + user_level.NORM_ALLOWANCE) + rounded <= norm * (1 + CLIENT_ALLOWANCE)


def test_the_count_never_takes_much_of_the_privacy():
    for expected_clients, noise_multiplier in itertools.product((0.5, 10.0, 1e6), (0.05, 1.0, 1e4)):
        adaptive = count_and_sum(noise_multiplier, expected_clients)
        assert 0.0 < adaptive.share <= MOST_OF_THE_COUNT * (1 + 1e-12)
        assert adaptive.sensitivity(1.0) <= 1.033
        if noise_multiplier > expected_clients:
            assert adaptive.share == pytest.approx(MOST_OF_THE_COUNT), "and no less of it where clients are few"
    with pytest.raises(ValueError, match=r"count_noise is 0\.4.*choose more than half"):
        count_and_sum(1.0, 10.0, count_noise=0.4)


@pytest.mark.exhaustive
def test_the_clipping_norm_finds_the_quantile_of_the_updates_norms():
    generator = np.random.default_rng(2)
    lengths = generator.lognormal(0.0, 1.0, len(CLIENTS))
    directions = generator.standard_normal((len(CLIENTS), 8))
    updates = dict(
        zip(CLIENTS, directions / np.linalg.norm(directions, axis=1)[:, None] * lengths[:, None], strict=True)
    )
    made, norm, norms = mechanism(0.5, 1.0, len(CLIENTS), count_and_sum(1.0, 100.0, 0.2)), 50.0, []
    for number in range(400):
        joined = made.draw_clients(CLIENTS, KEY, Position(number, 1))
        norm = released([updates[c] for c in sorted(joined)], norm, made, 8, Position(number, 1)).clipping_norm
        norms.append(norm)
    within = [float((lengths <= norm).mean()) for norm in norms[200:]]
    assert abs(float(np.mean(within)) - 0.2) < 0.03


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="clipping_norm is 0"):
        released([np.ones(2)], 0.0)
    with pytest.raises(ValueError, match=r"shape \[3\]; the model has 2"):
        released([np.ones(3)], dimension=2)
    with pytest.raises(ValueError, match="relation is zero-out"):
        ClippedClientSum(PoissonSampledGaussian(0.5, 1.0, NeighbouringRelation.ZERO_OUT), 3)
    with pytest.raises(ValueError, match="clients is 0"):
        mechanism(clients=0)
