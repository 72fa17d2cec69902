"""Epsilon from counts of errors, by exact binomial bounds."""

import math

import numpy as np
import pytest
from scipy import stats

from fedprivacy.accounting.composition import analytic_gaussian_epsilon
from fedprivacy.audit.bounds import clopper_pearson_epsilon, clopper_pearson_of_scores, largest_rate


def test_the_largest_rate_is_the_published_one():
    """The rule of three: no error in n trials leaves 1 - 0.05^(1/n); and what solves the binomial's own equation."""
    assert largest_rate(0, 100, 0.05) == pytest.approx(1 - 0.05 ** (1 / 100))
    rate = largest_rate(7, 50, 0.025)
    assert stats.binom.cdf(7, 50, rate) == pytest.approx(0.025)
    assert largest_rate(50, 50, 0.05) == 1.0


def test_no_error_at_all_leaves_what_the_rates_leave():
    rate = 1 - 0.025 ** (1 / 1000)
    found = clopper_pearson_epsilon(0, 1000, 0, 1000, delta=1e-5, confidence=0.95)
    assert found == pytest.approx(math.log((1 - 1e-5 - rate) / rate))


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
def test_the_rates_of_every_optimal_test_stay_below_the_truth_and_come_near_it(noise):
    delta, trials, reached = 1e-3, 10**9, 0.0
    truth = analytic_gaussian_epsilon(noise, delta)
    for threshold in np.linspace(-6 * noise, 6 * noise + 1, 200):
        wrong, lost = stats.norm.sf(threshold, 0, noise), stats.norm.cdf(threshold, 1, noise)
        counts = round(trials * wrong), trials, round(trials * lost), trials
        reached = max(reached, clopper_pearson_epsilon(*counts, delta=delta, confidence=0.95))
    assert 0.97 * truth < reached <= truth


@pytest.mark.exhaustive
def test_a_threshold_is_tried_on_other_scores_than_it_was_chosen_on():
    """Catches: scores that choose and are counted: the best of many thresholds would prove something of noise."""
    rng, exceeded, confidence = np.random.default_rng(1), 0, 0.5
    for _ in range(200):
        present, absent = rng.normal(size=(2, 400))
        exceeded += clopper_pearson_of_scores(present, absent, 0.0, confidence) > 0.0
    assert exceeded <= stats.binom.ppf(1 - 1e-5, 200, 1 - confidence)


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
