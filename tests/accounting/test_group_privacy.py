"""Several records of one person: the two bounds of docs/how-to/epsilon.md on what they cost together, and no third."""

import math

import numpy as np
import pytest
from scipy import stats

from fedprivacy.accounting import pld
from fedprivacy.values.events import PoissonSampledGaussian
from tests.accounting.marked import exhaustive
from tests.accounting.oracles import gaussian_epsilon

X = np.linspace(-40.0, 60.0, 200_001)
EPSILONS = np.linspace(0.0, 6.0, 25)


def with_group(weights, sigma):
    """Density of a step's sum along one direction; j of the group's records join with probability `weights[j]`."""
    return sum(weight * stats.norm.pdf(X, j, sigma) for j, weight in enumerate(weights))


def deltas(one, other, epsilons):
    """The hockey-stick divergence of one density from another, at each epsilon."""
    return np.array([np.maximum(one - math.exp(e) * other, 0.0).sum() * (X[1] - X[0]) for e in epsilons])


def both_directions(weights, sigma, epsilons=EPSILONS):
    """Deltas of adding the group and of removing it, shape [2, epsilons]."""
    group, nobody = with_group(weights, sigma), with_group([1.0], sigma)
    return np.array([deltas(group, nobody, epsilons), deltas(nobody, group, epsilons)])


def at_least_one(q, k):
    """The rate at which at least one of k records joins."""
    return 1.0 - (1.0 - q) ** k


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("sigma", [0.5, 3.0])
@pytest.mark.parametrize("q", [0.3, *exhaustive(0.01, 1.0)])
def test_k_records_cost_no_more_than_k_times_less_noise_at_the_rate_at_which_one_of_them_joins(q, sigma, k):
    """The worst k records point one way. Shrinking k to j and adding the missing noise is post-processing."""
    exact = both_directions(stats.binom.pmf(range(k + 1), k, q), sigma)
    rate = at_least_one(q, k)
    bound = both_directions([1.0 - rate, *[0.0] * (k - 1), rate], sigma)
    assert (exact <= bound + 1e-9).all()


def test_at_their_own_rate_k_records_cost_more_than_k_times_less_noise():
    """So the rate must be raised, too: one of two joins more often than each."""
    exact = both_directions(stats.binom.pmf(range(3), 2, 0.5), 0.3)
    assert (exact > both_directions([0.5, 0.0, 0.5], 0.3) + 0.1).any()


@pytest.mark.parametrize(("q", "sigma"), [(1.0, 1.0), (0.3, 0.7)])
@pytest.mark.parametrize("k", [2, 3])
def test_k_records_cost_k_epsilon_at_a_larger_delta(q, sigma, k):
    """From one record to k: (epsilon, delta) becomes (k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1))."""
    exact = both_directions(stats.binom.pmf(range(k + 1), k, q), sigma).max(axis=0)
    each = EPSILONS[1:] / k
    of_one = both_directions([1.0 - q, q], sigma, each).max(axis=0)
    assert (exact[1:] <= of_one * np.expm1(EPSILONS[1:]) / np.expm1(each) + 1e-9).all()


def test_k_times_epsilon_at_the_same_delta_is_no_bound():
    one, two = gaussian_epsilon(1.0, 1e-5), gaussian_epsilon(2.0, 1e-5)
    assert (round(one, 2), round(two, 2)) == (4.38, 10.0)
    assert two > 2 * one


def test_the_figures_of_the_guide():
    assert round(pld.epsilon({PoissonSampledGaussian(1.0, 0.5): 1}, 1e-5), 2) == 10.0
    past = {PoissonSampledGaussian(0.01, 1.0): 1000}
    assert round(pld.epsilon(past, 1e-5), 2) == 1.83
    assert round(pld.epsilon(past, 1e-6), 2) == 2.12
    assert 1e-6 * (1 + math.exp(pld.epsilon(past, 1e-6))) <= 1e-5
    assert round(pld.epsilon({PoissonSampledGaussian(at_least_one(0.01, 2), 0.5): 1000}, 1e-5)) == 24
