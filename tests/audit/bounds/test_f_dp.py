"""Guesses against Gaussian trade-off functions."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, ndtr

from fedprivacy.accounting import pld
from fedprivacy.accounting.gdp import gaussian_epsilon
from fedprivacy.audit.bounds import (
    count_right_guesses,
    f_dp_epsilon,
    gaussian_trade_off,
    least_mu,
    one_run_epsilon,
    refutes_claim,
)
from fedprivacy.values.events import PoissonSampledGaussian


def test_one_canary_is_guessed_as_rightly_as_the_trade_off_allows():
    """For m = r = v = 1: x wrong and y right, x = least(y), x + y = 1, is Phi(mu / 2) right (the optimal test)."""
    mu = 1.4
    assert refutes_claim(1, 1, 1, gaussian_trade_off(mu), ndtr(mu / 2) + 1e-9)
    assert not refutes_claim(1, 1, 1, gaussian_trade_off(mu), ndtr(mu / 2) - 1e-9)


def test_pure_randomised_response_is_never_refuted_and_nearly():
    """Catches a recursion that asks too much: exact tails of a mechanism that keeps the claim are never below risk."""
    epsilon, guesses = 0.8, 60
    right = expit(epsilon)

    def least(chance):
        return max(chance * np.exp(-epsilon), 1 - np.exp(epsilon) * (1 - chance))

    for correct in range(20, guesses + 1):
        tail = stats.binom.sf(correct - 1, guesses, right)
        assert not refutes_claim(correct, guesses, guesses, least, tail * (1 - 1e-9))
    assert refutes_claim(guesses, guesses, guesses, least, 2 * right**guesses)


@pytest.mark.parametrize(("mu", "share"), [(0.5, 0.5), (2.0, 0.05), (4.0, 0.5)])
def test_the_optimal_guesses_of_gaussians_stay_below_the_truth(mu, share):
    """Each canary shifts a Gaussian of its own by mu; of the largest, these are in, had they their average number."""
    canaries = 20_000
    guesses = int(share * canaries)
    threshold = brentq(lambda x: 0.5 * (ndtr(-x) + ndtr(mu - x)) - share, -10.0, 20.0)
    right = ndtr(mu - threshold) / (ndtr(-threshold) + ndtr(mu - threshold))
    assert 0.3 * mu < least_mu(int(guesses * right), guesses, canaries, 0.95) <= mu


def test_it_proves_more_than_the_bound_that_knows_no_trade_off():
    counts, delta = (900, 1000, 5000), 1e-5
    assert f_dp_epsilon(*counts, delta, 0.95) > one_run_epsilon(*counts, delta, 0.95) > 0.0


def test_more_right_guesses_prove_more_and_more_confidence_less():
    assert least_mu(81, 100, 1000, 0.95) > least_mu(80, 100, 1000, 0.95) > least_mu(80, 100, 1000, 0.99)
    assert least_mu(50, 100, 1000, 0.95) == 0.0


@pytest.mark.parametrize("rate", [0.1, *(pytest.param(rate, marks=pytest.mark.exhaustive) for rate in (0.01, 1.0))])
@pytest.mark.parametrize("noise", [0.9, 1.7, 4.0])
def test_the_gaussian_that_rates_of_errors_show_understates_a_sampled_one(rate, noise):
    """The assumption costs tightness alone: at deltas of rates that can be counted, a smaller mu than at 1e-5."""
    history = {PoissonSampledGaussian(rate, noise): 100}
    at_small = pld.epsilon(history, 1e-5)
    for delta in (0.3, 0.1, 0.03, 0.01, 0.003):
        epsilon, low, high = pld.epsilon(history, delta), 0.0, 40.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if gaussian_epsilon(middle, delta) < epsilon else (low, middle)
        assert gaussian_epsilon(low, 1e-5) <= at_small * (1 + 1e-4)


@pytest.mark.exhaustive
def test_guesses_about_gaussian_canaries_exceed_the_truth_as_rarely_as_stated():
    rng, mu, exceeded, runs = np.random.default_rng(3), 1.0, 0, 150
    for _ in range(runs):
        members = rng.random(400) < 0.5
        scores = rng.normal(size=400) + mu * members
        exceeded += least_mu(*count_right_guesses(scores, members, 0.25), 0.95) > mu
    assert exceeded <= stats.binom.ppf(1 - 1e-5, runs, 0.05)
