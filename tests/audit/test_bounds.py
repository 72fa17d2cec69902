"""Epsilon from counts of errors, from guesses and from readings of steps: below the truth, and near it."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, ndtr

from fedprivacy.accounting import pld
from fedprivacy.accounting.composition import analytic_gaussian_epsilon
from fedprivacy.audit.bounds import (
    Readings,
    clopper_pearson_epsilon,
    clopper_pearson_of_scores,
    count_right_guesses,
    f_dp_epsilon,
    largest_rate,
    least_mu,
    least_shift,
    one_run_epsilon,
    one_run_p_value,
    per_step_epsilon,
    refutes_claim,
)
from fedprivacy.values.events import PoissonSampledGaussian

# --- counts of errors ------------------------------------------------------------------------------------------------


def test_the_largest_rate_is_the_published_one():
    """The rule of three: no error in n trials leaves 1 - 0.05^(1/n); and what solves the binomial's own equation."""
    assert largest_rate(0, 100, 0.05) == pytest.approx(1 - 0.05 ** (1 / 100))
    rate = largest_rate(7, 50, 0.025)
    assert stats.binom.cdf(7, 50, rate) == pytest.approx(0.025)
    assert largest_rate(50, 50, 0.05) == 1.0


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
def test_the_rates_of_every_optimal_test_stay_below_the_truth_and_come_near_it(noise):
    delta, trials, reached = 1e-3, 10**9, 0.0
    truth = analytic_gaussian_epsilon(noise, delta)
    for threshold in np.linspace(-6 * noise, 6 * noise + 1, 200):
        wrong, lost = stats.norm.sf(threshold, 0, noise), stats.norm.cdf(threshold, 1, noise)
        counts = round(trials * wrong), trials, round(trials * lost), trials
        reached = max(reached, clopper_pearson_epsilon(*counts, delta=delta, confidence=0.95))
    assert 0.97 * truth < reached <= truth


def test_scores_that_choose_a_threshold_prove_nothing_themselves():
    """One score of four tells, all others are equal: either those that tell choose, or they choose and know nothing."""
    for first in range(4):
        present = np.zeros(400)
        present[first::4] = 1.0
        assert clopper_pearson_of_scores(present, np.zeros(400), 1e-5, 0.95) == 0.0


def test_scores_that_tell_are_told():
    rng = np.random.default_rng(2)
    present, absent = rng.normal(8, 1, 4000), rng.normal(0, 1, 4000)
    assert clopper_pearson_of_scores(present, absent, 1e-5, 0.95) > 5.0
    assert clopper_pearson_of_scores(present[:3], absent, 1e-5, 0.95) == 0.0


# --- guesses, against Gaussian trade-off functions --------------------------------------------------------------------


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


# --- guesses about one run, without any assumption --------------------------------------------------------------------


def test_a_p_value_is_that_of_the_theorem():
    """Theorem 5.2, written out for two guesses: F(0) = 1, F(1) = 1 - (1 - p)^2, F(2) = p^2."""
    p = expit(1.3)
    at_least = [1.0, 1 - (1 - p) ** 2, p**2]
    steepest = max(at_least[1] - at_least[2], (at_least[0] - at_least[2]) / 2)
    assert one_run_p_value(2, 2, 5, 1.3, 0.01) == pytest.approx(at_least[2] + 2 * 5 * 0.01 * steepest)
    assert one_run_p_value(2, 2, 5, 1.3, 0.0) == pytest.approx(at_least[2])


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_randomised_response_is_as_right_as_the_theorem_allows_and_not_more(delta):
    """Each bit is told with probability delta, else by randomised response: the worst (epsilon, delta) mechanism."""
    canaries, epsilon = 40, 0.8
    right = delta + (1 - delta) * expit(epsilon)
    for correct in range(canaries + 1):
        assert stats.binom.sf(correct - 1, canaries, right) <= one_run_p_value(
            correct, canaries, canaries, epsilon, delta
        ) * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_what_randomised_response_does_on_average_stays_below_the_truth_and_comes_near_it(epsilon):
    guesses = 10**5
    found = one_run_epsilon(int(guesses * expit(epsilon)), guesses, guesses, 0.0, 0.95)
    assert 0.95 * epsilon < found <= epsilon


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="cannot be right"):
        one_run_epsilon(11, 10, 100, 0.0, 0.95)
    with pytest.raises(ValueError, match="confidence is 1"):
        one_run_epsilon(1, 10, 100, 0.0, 1.0)


def test_the_largest_scores_are_guessed_to_be_in():
    scores, members = np.array([0.1, 5.0, -3.0, 4.0]), np.array([True, True, False, False])
    assert count_right_guesses(scores, members, 0.5) == (1, 2, 4)


# --- readings of steps ------------------------------------------------------------------------------------------------

EVENT = PoissonSampledGaussian(0.1, 1.0)


def drawn(rng, count, noise, length=1.0, rate=0.1):
    canaries = rng.binomial(3, rate, count).astype(float)
    return Readings.of(length * canaries + rng.normal(0, noise, count), canaries)


@pytest.mark.parametrize(
    ("count", "noise", "confidence"),
    [
        (6, 4.0, 0.9),
        pytest.param(6, 0.3, 0.99, marks=pytest.mark.exhaustive),
        pytest.param(2_000, 1.0, 0.9, marks=pytest.mark.exhaustive),
    ],
)
def test_the_bound_exceeds_the_shift_exactly_as_often_as_stated(count, noise, confidence):
    """The formal guarantee, from both sides; false alarms 1e-5."""
    rng, trials = np.random.default_rng(5), 1_000
    readings = [drawn(rng, count, noise, rate=0.4) for _ in range(trials)]
    readings = [each for each in readings if each.spread > 0.0]
    exceeded = sum(least_shift(each, confidence) > 1 / noise for each in readings)
    low, high = stats.binom.ppf([5e-6, 1 - 5e-6], len(readings), 1 - confidence)
    assert low <= exceeded <= high


def test_what_cannot_be_read_proves_nothing():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=100)
    assert least_shift(Readings.of(noise[:2], np.array([0.0, 1.0])), 0.95) == 0.0
    assert least_shift(Readings.of(noise, np.zeros(100)), 0.95) == 0.0  # nobody ever joined
    assert least_shift(Readings.of(noise, np.ones(100)), 0.95) == 0.0  # all always did
    canaries = np.tile([0.0, 1.0], 50)
    assert least_shift(Readings.of(noise - canaries, canaries), 0.95) == 0.0


def test_a_release_that_cannot_be_read_is_an_error_and_no_loss():
    with pytest.raises(ValueError, match="not finite"):
        Readings.of(np.array([0.0, np.nan, 1.0]), np.zeros(3))


def test_without_noise_everything_is_lost():
    canaries = np.tile([0.0, 1.0, 3.0, 1.0], 30)
    readings = Readings.of(canaries, canaries)
    assert least_shift(readings, 0.95) == math.inf
    assert per_step_epsilon(math.inf, EVENT, 100, 1e-5) == math.inf


@pytest.mark.parametrize("noise", [0.9, 1.7, 4.0])
def test_a_shift_is_composed_by_the_accountant_of_the_upper_bound(noise):
    event = PoissonSampledGaussian(0.1, 99.0)  # not believed
    claimed = pld.epsilon({PoissonSampledGaussian(0.1, noise): 100}, 1e-5)
    assert per_step_epsilon(1 / noise, event, 100, 1e-5) == pytest.approx(claimed, rel=1e-9)
    assert per_step_epsilon(0.99 / noise, event, 100, 1e-5) < claimed
    assert per_step_epsilon(0.0, event, 100, 1e-5) == 0.0
