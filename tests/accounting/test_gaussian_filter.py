"""Questions on one budget: Gaussians without sampling, each with noise of its own, chosen by the answers before it."""

import math
import random
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedprivacy.accounting import (
    UNLIMITED,
    AdaptiveFilter,
    FixedThenAdaptiveFilter,
    GaussianFilter,
    MechanismChanged,
    pld,
)
from fedprivacy.accounting.filters import SHARE_FOR_OTHERS
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian, PoissonSampledLaplace
from tests.accounting.oracles import gaussian_delta, gaussian_profile

RELATION = NeighbouringRelation.ADD_OR_REMOVE_ONE
BUDGET = PrivacyBudget(3.0, 1e-5)
SAMPLED = PoissonSampledGaussian(0.1, 4.0)


def question(noise, relation=RELATION):
    return PoissonSampledGaussian(1.0, noise, relation)


def added(past, event, steps=1):
    return {**past, event: past.get(event, 0) + steps}


def exact_delta(history, epsilon):
    """Delta of Gaussians together, to 50 digits."""
    squares = (
        (Fraction(event.sensitivity) / Fraction(event.noise_multiplier)) ** 2 * n for event, n in history.items()
    )
    with mpmath.workdps(50):
        total = sum(squares)
        return gaussian_delta(mpmath.sqrt(mpmath.mpf(total.numerator) / total.denominator), epsilon)


@pytest.mark.parametrize("relation", NeighbouringRelation)
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 20.0])
def test_as_many_executions_as_exactly_fit_are_granted_and_not_one_more(epsilon, relation):
    budget, event = PrivacyBudget(epsilon, 1e-5), question(137.3, relation)
    quota = GaussianFilter(budget).quota({}, event)
    fits, does_not = (exact_delta({event: n}, epsilon) for n in (quota, quota + 1))
    assert fits <= 1e-5 < does_not


@given(
    chosen=st.lists(st.tuples(st.floats(-3.0, 9.0), st.integers(1, 2**31 - 1)), min_size=1, max_size=8),
    epsilon=st.sampled_from([1e-3, 0.5, 8.0]),
    delta=st.sampled_from([1e-12, 1e-5]),
    relation=st.sampled_from(NeighbouringRelation),
)
def test_no_sequence_passes_the_budget_whatever_the_noises(chosen, epsilon, delta, relation):
    filter_, past = GaussianFilter(PrivacyBudget(epsilon, delta)), {}
    for exponent, wanted in chosen:
        event = question(10.0**exponent, relation)
        past = added(past, event, min(wanted, filter_.quota(past, event)))
    if any(past.values()):
        assert exact_delta(past, epsilon) <= delta


def test_noise_beyond_all_measure_is_counted_and_never_on_the_wrong_side():
    filter_ = GaussianFilter(BUDGET)
    assert filter_.quota({}, question(5e-324)) == 0
    assert filter_.quota({}, question(1e300)) == UNLIMITED
    assert filter_.quota({question(1e300): UNLIMITED, question(5e-324): 1}, question(1e300)) == 0
    much, little = {question(1e150): UNLIMITED}, filter_.quota({}, question(1e6))
    assert little - 1 <= filter_.quota(much, question(1e6)) <= little


@pytest.mark.parametrize("relation", NeighbouringRelation)
@pytest.mark.parametrize("past", [0, 3])
def test_the_least_noise_is_enough_and_less_is_not(past, relation):
    filter_, before = GaussianFilter(BUDGET), {question(9.0, relation): past}
    for steps in (1, 7, 10_000):
        noise = filter_.noise_multiplier(1.0, steps, relation, before)
        assert filter_.quota(before, question(noise, relation)) == steps
        assert filter_.quota(before, question(noise * (1 - 1e-9), relation)) < steps
    assert filter_.noise_multiplier(1.0, 1, relation, before, least=50.0) == 50.0


def test_noise_that_cannot_be_found_is_said():
    filter_ = GaussianFilter(BUDGET)
    spent = {question(1.0): 10}
    with pytest.raises(ValueError, match=r"epsilon is 3\.0 at delta 1e-05 for 2 steps after what was spent before"):
        filter_.noise_multiplier(1.0, 2, RELATION, spent)
    with pytest.raises(ValueError, match="epsilon is infinite"):
        GaussianFilter(PrivacyBudget(math.inf, 1e-5)).noise_multiplier(1.0, 2, RELATION)
    assert GaussianFilter(PrivacyBudget(math.inf, 1e-5)).quota(spent, question(1.0)) == UNLIMITED


@pytest.mark.parametrize("other", [SAMPLED, PoissonSampledLaplace(1.0, 4.0)])
def test_it_knows_gaussians_without_sampling_alone(other):
    filter_ = GaussianFilter(BUDGET)
    for past, event in (({}, other), ({other: 1}, question(9.0))):
        with pytest.raises(MechanismChanged, match="no Gaussian without sampling"):
            filter_.quota(past, event)
    with pytest.raises(MechanismChanged):
        filter_.noise_multiplier(0.1, 10, RELATION)
    with pytest.raises(ValueError, match="relation"):
        filter_.quota({question(9.0, NeighbouringRelation.ZERO_OUT): 1}, question(9.0))


def test_whoever_chooses_the_next_noise_by_the_last_answer_gains_nothing():
    """The exact delta of the best adversary of two turns: it stops, asks once, or asks often, by what was shown."""
    filter_, epsilon = GaussianFilter(BUDGET), BUDGET.epsilon
    z = np.linspace(-9.0, 9.0, 4001)
    for share in (0.1, 0.5, 0.9):
        first = question(filter_.noise_multiplier(1.0, 1, RELATION) / math.sqrt(share))
        mu = 1.0 / first.noise_multiplier
        loss, shown = mu * z + mu**2 / 2, [np.maximum(-np.expm1(epsilon - (mu * z + mu**2 / 2)), 0.0)]
        for steps, part in ((1, 1.0), (1, 0.6), (5, 1.0), (40, 0.9)):
            noise = filter_.noise_multiplier(1.0, steps, RELATION, {first: 1})
            taken = int(part * filter_.quota({first: 1}, question(noise)))
            if taken:
                shown.append(gaussian_profile(math.sqrt(taken) / noise, epsilon - loss))
        delta = float(norm.pdf(z) @ np.max(shown, axis=0) * (z[1] - z[0]))
        assert 0.999e-5 < delta <= 1e-5 * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 8.0])
def test_questions_of_any_noise_may_use_all_of_a_budget_and_training_after_them_what_it_could_before(epsilon):
    """By the RDP bound alone they would stop at about three quarters of its epsilon."""
    budget, chance, past = PrivacyBudget(epsilon, 1e-5), random.Random(7), {}
    filter_ = FixedThenAdaptiveFilter(budget)
    for _ in range(12):
        asked = question(filter_.noise_multiplier(1.0, 1, RELATION, past) * chance.uniform(1.5, 4.0))
        past = added(past, asked)
    past = added(past, question(filter_.noise_multiplier(1.0, 1, RELATION, past)))
    assert 0.995 * epsilon < pld.epsilon(past, 1e-5) <= epsilon
    alone = AdaptiveFilter(PrivacyBudget(epsilon, SHARE_FOR_OTHERS * 1e-5))
    some = dict(list(past.items())[:3])
    assert filter_.quota(some, SAMPLED) == alone.quota(some, SAMPLED)
    assert filter_.quota(past, SAMPLED) == 0
    mixed = added(some, SAMPLED)  # a sampled event ends the exact sum for ever
    assert filter_.quota(mixed, question(99.0)) == alone.quota(mixed, question(99.0))
    assert filter_.noise_multiplier(1.0, 1, RELATION, mixed) == alone.noise_multiplier(1.0, 1, RELATION, mixed)
