"""The curve of an attack is exact, with ties and without, as scikit-learn draws it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from benchmarks.attacks.roc import Roc, clopper_pearson

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_the_curve_is_that_of_scikit_learn_with_ties_and_without(members, others):
    roc = Roc.of(members, others)
    truth = [1] * len(members) + [0] * len(others)
    false, true, _ = roc_curve(truth, [*members, *others], drop_intermediate=False)
    np.testing.assert_allclose(roc.false_positive_rates, false, atol=1e-12)
    np.testing.assert_allclose(roc.true_positive_rates, true, atol=1e-12)
    assert roc.area == pytest.approx(roc_auc_score(truth, [*members, *others]), abs=1e-12)


@given(SCORES, SCORES, st.floats(0.0, 1.0))
def test_the_rate_at_a_false_positive_rate_is_that_of_the_best_threshold(members, others, most):
    found = Roc.of(members, others).at(most)
    best = 0.0
    for threshold in {*members, *others, math.inf}:
        alarms = sum(score >= threshold for score in others)
        if alarms <= most * len(others):
            best = max(best, sum(score >= threshold for score in members) / len(members))
    assert found.true_positive_rate == pytest.approx(best)
    assert found.false_positive_rate <= most
    assert found.low <= best <= found.high


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (7, 7), (1, 2505), (120, 1000)])
def test_the_interval_is_exact(successes, trials):
    wanted = stats.binomtest(successes, trials).proportion_ci(0.99, "exact")
    assert clopper_pearson(successes, trials, 0.99) == pytest.approx((wanted.low, wanted.high), rel=1e-9)


@pytest.mark.parametrize(("members", "others"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0])])
def test_what_cannot_be_compared_is_refused(members, others):
    with pytest.raises(ValueError, match=r"an attack needs both|not a number"):
        Roc.of(members, others)
