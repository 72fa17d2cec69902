"""Filters: whatever mechanisms and noises are chosen by the answers before, the budget is kept."""

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.accounting import (
    FILTERS,
    UNLIMITED,
    AdaptiveFilter,
    GaussianFilter,
    MechanismChanged,
    noise_multiplier,
    pld,
    rdp,
    sampling_rate,
)
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian, PoissonSampledLaplace
from tests.accounting.marked import exhaustive
from tests.accounting.oracles import gaussian_delta

RELATION = NeighbouringRelation.ADD_OR_REMOVE_ONE
BUDGET = PrivacyBudget(3.0, 1e-5)
SAMPLED = PoissonSampledGaussian(0.1, 4.0)


@given(
    data=st.lists(
        st.tuples(st.sampled_from([0.005, 0.01, 0.05, 1.0]), st.sampled_from([2.0, 4.0, 25.0]), st.floats(0.05, 1.0)),
        min_size=1,
        max_size=6,
    ),
    epsilon=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_adaptive_filter_keeps_the_bound_whatever_is_chosen(data, epsilon):
    """Any sequence of events, each run for a share of the quota: the composed divergence stays within the bound."""
    budget = PrivacyBudget(epsilon, 1e-5)
    filter_, past = AdaptiveFilter(budget), {}
    for q, s, share in data:
        event = PoissonSampledGaussian(q, s)
        past[event] = past.get(event, 0) + int(share * filter_.quota(past, event))
    spent = rdp.compose(past, [filter_.order])
    assert spent[0] <= filter_.bound * (1 + 1e-12)
    assert rdp.to_epsilon(spent, budget.delta, [filter_.order])[0] <= epsilon * (1 + 1e-12)
    assert pld.epsilon(past, budget.delta) <= epsilon


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_every_filter_measures_without_stopping_when_epsilon_is_infinite(name):
    filter_ = FILTERS[name](PrivacyBudget(math.inf, 1e-5))
    assert filter_.quota({SAMPLED: 10**6}, SAMPLED) == UNLIMITED
    with pytest.raises(ValueError, match="infinite"):
        filter_.noise_multiplier(0.01, 10, RELATION)


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize(("q", "n"), [(0.01, 1000), (1.0, 50)])
def test_every_filter_calibrates_noise_for_its_own_quota(name, q, n):
    filter_ = FILTERS[name](BUDGET)
    noise = filter_.noise_multiplier(q, n, RELATION)
    assert filter_.quota({}, PoissonSampledGaussian(q, noise)) >= n
    assert filter_.quota({}, PoissonSampledGaussian(q, 0.99 * noise)) < n


def test_no_filter_mixes_relations():
    past = {PoissonSampledGaussian(0.01, 1.0, NeighbouringRelation.ZERO_OUT): 1}
    for make in FILTERS.values():
        with pytest.raises(ValueError, match="relation"):
            make(BUDGET).quota(past, SAMPLED)


# --- questions: Gaussians without sampling --------------------------------------------------------------------------


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


# --- noise and rates that spend a budget ---------------------------------------------------------------------------

BEFORE = {PoissonSampledGaussian(0.02, 1.3): 200}
CASES = [
    (0.01, 1000, 2.0, 1e-5),
    (0.002, 5000, 1.0, 1e-6),
    (1.0, 1000, 0.1, 1e-5),
    *exhaustive(
        (1.0, 1, 1.0, 1e-5),
        (0.5, 1000, 500.0, 1e-5),
        (1e-4, 10, 3.0, 1e-9),
        (0.1, 100_000, 8.0, 1e-5),
        (0.1, 10, 1e-3, 1e-5),
    ),
]


@pytest.mark.parametrize(("q", "n", "epsilon", "delta"), CASES)
def test_calibrated_noise_spends_the_budget_and_no_more(q: float, n: int, epsilon: float, delta: float) -> None:
    noise = noise_multiplier(PrivacyBudget(epsilon, delta), q, n)
    assert 0.999 * epsilon <= pld.epsilon({PoissonSampledGaussian(q, noise): n}, delta) <= epsilon


def test_replacing_a_record_takes_twice_the_noise_of_adding_one() -> None:
    budget, replace_one = PrivacyBudget(2.0, 1e-5), NeighbouringRelation.REPLACE_ONE
    added, replaced = noise_multiplier(budget, 1.0, 40), noise_multiplier(budget, 1.0, 40, replace_one)
    assert replaced == pytest.approx(2.0 * added, rel=2e-3)
    assert pld.epsilon({PoissonSampledGaussian(1.0, replaced, replace_one): 40}, 1e-5) <= 2.0


@pytest.mark.parametrize(
    ("budget", "q", "n", "message"),
    [
        (PrivacyBudget(1.0, 1e-5), 0.1, 0, "steps is 0"),
        (PrivacyBudget(math.inf, 1e-5), 0.1, 10, "epsilon is infinite"),
        *exhaustive(
            (PrivacyBudget(1e-5, 1e-5), 1.0, 10**9, "noise multiplier of 10000 does not meet"),
            (PrivacyBudget(1.0, 1e-2), 1e-6, 10, "asks for no noise"),
        ),
        (PrivacyBudget(1.0, 1e-5), 1.5, 10, "sampling_rate is 1.5"),
    ],
)
def test_impossible_requests_name_the_remedy(budget: PrivacyBudget, q: float, n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noise_multiplier(budget, q, n)


def test_the_largest_sampling_rate_spends_the_budget() -> None:
    for past in ({}, BEFORE):
        rate = sampling_rate(PrivacyBudget(3.0, 1e-5), 1.2, 500, past)
        assert 0.999 * 3.0 <= pld.epsilon({**past, PoissonSampledGaussian(rate, 1.2): 500}, 1e-5) <= 3.0
    assert sampling_rate(PrivacyBudget(3.0, 1e-5), 50.0, 10) == 1.0
    with pytest.raises(ValueError, match="more noise"):
        sampling_rate(PrivacyBudget(1e-4, 1e-12), 0.5, 10**6)
