"""The limit on attacks is exact where the exact answer is known, and never lower."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from benchmarks.attacks.limits import breaches, limit, limit_of
from benchmarks.attacks.roc import Roc
from fedprivacy.accounting import pld
from fedprivacy.values.events import PoissonSampledGaussian

RATES = np.array([1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.999])


@given(st.floats(0.0, 10.0), st.floats(0.0, 0.5), st.floats(0.0, 1.0))
def test_epsilon_and_delta_allow_what_their_worst_mechanism_gives_away(epsilon, delta, rate):
    """The best test of that mechanism (Kairouz et al. 2015) calls the likeliest outcomes members first."""
    high = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    inside = np.array([delta, high, 1.0 - delta - high, 0.0])
    true, false = (np.append(0.0, np.cumsum(masses)) for masses in (inside, inside[::-1]))
    best = np.max(true[false <= 0.0]) if rate == 0.0 else np.interp(rate, false, true)
    assert float(limit(rate, epsilon=epsilon, delta=delta)) == pytest.approx(best, abs=1e-9)


def test_no_privacy_allows_everything_and_nothing_learned_allows_guessing():
    assert (limit(RATES, epsilon=math.inf, delta=0.0) == 1.0).all()
    assert limit(RATES, epsilon=0.0, delta=0.0) == pytest.approx(RATES)
    assert limit_of({}, RATES) == pytest.approx(RATES)


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (10.0, 100), (0.3, 1)])
def test_of_a_gaussian_mechanism_the_limit_is_its_trade_off_function(noise, steps):
    exact = norm.cdf(norm.ppf(RATES) + math.sqrt(steps) / noise)
    allowed = limit_of({PoissonSampledGaussian(1.0, noise): steps}, RATES)
    assert (allowed >= exact * (1.0 - 1e-12)).all()
    assert (allowed <= exact * 1.02).all()


@pytest.mark.parametrize("delta", [1e-7, 3.3e-5, 0.0123, 0.2])
def test_the_limit_is_about_as_tight_as_every_single_pair(delta):
    history = {PoissonSampledGaussian(0.1, 1.2): 400}
    single = limit(RATES, epsilon=pld.epsilon(history, delta), delta=delta)
    assert (limit_of(history, RATES) <= 1.02 * single).all()


def test_an_attack_that_is_as_good_as_allowed_breaches_nothing_and_a_better_one_does():
    rng = np.random.default_rng(3)
    history = {PoissonSampledGaussian(1.0, 2.0): 1}  # N(1/2, 1) against N(0, 1)
    others = rng.normal(size=20_000)
    assert breaches(Roc.of(rng.normal(size=20_000) + 0.5, others), history) == ()
    assert breaches(Roc.of(rng.normal(size=20_000) + 1.0, others), history) == (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    assert breaches(Roc.of(rng.normal(size=20_000) + 1.0, others), {PoissonSampledGaussian(1.0, 0.9): 1}) == ()
