"""Epsilon from guesses about one run, without any assumption on the mechanism."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from fedprivacy.audit.bounds import count_right_guesses, one_run_epsilon, one_run_p_value


@pytest.mark.parametrize("guesses", [1, 10, 500])
def test_all_guesses_right_have_a_closed_form(guesses):
    """F(r) = (e^eps / (1 + e^eps))^r = 1 - confidence."""
    root = 0.05 ** (1 / guesses)
    expected = max(0.0, math.log(root / (1 - root)))
    assert one_run_epsilon(guesses, guesses, 1000, 0.0, 0.95) == pytest.approx(expected, abs=1e-9)


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
