import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.accounting import (
    FILTERS,
    UNLIMITED,
    AdaptiveFilter,
    FixedMechanismFilter,
    pld,
    rdp,
    step_quota,
)
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

BUDGET = PrivacyBudget(2.0, 1e-5)
EVENT = PoissonSampledGaussian(0.01, 1.0)


def test_fixed_filter_grants_the_pld_quota_and_then_what_is_left() -> None:
    filter_ = FixedMechanismFilter(BUDGET)
    whole = step_quota(EVENT, BUDGET)
    assert filter_.quota({}, EVENT) == whole
    assert filter_.quota({EVENT: 300}, EVENT) == whole - 300
    assert filter_.quota({EVENT: whole}, EVENT) == 0
    assert filter_.quota({EVENT: whole + 5}, EVENT) == 0
    assert filter_.quota({PoissonSampledGaussian(0.5, 1.0): 0}, EVENT) == whole  # it never ran


@given(
    data=st.lists(
        st.tuples(st.sampled_from([0.005, 0.01, 0.05, 1.0]), st.sampled_from([2.0, 4.0, 25.0]), st.floats(0.05, 1.0)),
        min_size=1,
        max_size=6,
    ),
    epsilon=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_adaptive_filter_keeps_the_bound_whatever_is_chosen(
    data: list[tuple[float, float, float]], epsilon: float
) -> None:
    """Any sequence of events, each run for a share of the quota: the composed divergence stays within the bound."""
    budget = PrivacyBudget(epsilon, 1e-5)
    filter_ = AdaptiveFilter(budget)
    past: dict[PoissonSampledGaussian, int] = {}
    for q, s, share in data:
        event = PoissonSampledGaussian(q, s)
        past[event] = past.get(event, 0) + int(share * filter_.quota(past, event))
    spent = rdp.compose(past, [filter_.order])
    assert spent[0] <= filter_.bound * (1 + 1e-12)
    assert rdp.to_epsilon(spent, budget.delta, [filter_.order])[0] <= epsilon * (1 + 1e-12)
    assert pld.epsilon(past, budget.delta) <= epsilon


@pytest.mark.parametrize("past", [{}, {EVENT: 3, PoissonSampledGaussian(0.1, 5.0): 20}])
def test_adaptive_quota_is_maximal(past: dict[PoissonSampledGaussian, int]) -> None:
    filter_, event = AdaptiveFilter(BUDGET), PoissonSampledGaussian(0.02, 2.0)
    n = filter_.quota(past, event)
    assert n > 0
    assert rdp.compose({**past, event: n}, [filter_.order])[0] <= filter_.bound
    assert rdp.compose({**past, event: n + 1}, [filter_.order])[0] > filter_.bound
    assert filter_.quota({PoissonSampledGaussian(1.0, 0.5): 3}, event) == 0
    assert filter_.quota(past, PoissonSampledGaussian(0.5, 1e-200)) == 0


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_every_filter_measures_without_stopping_when_epsilon_is_infinite(name: str) -> None:
    filter_ = FILTERS[name](PrivacyBudget(math.inf, 1e-5))
    assert filter_.quota({EVENT: 10**6}, EVENT) == UNLIMITED
    with pytest.raises(ValueError, match="infinite"):
        filter_.noise_multiplier(0.01, 10, NeighbouringRelation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize(("q", "n"), [(0.01, 1000), (1.0, 50)])
def test_every_filter_calibrates_noise_for_its_own_quota(name: str, q: float, n: int) -> None:
    filter_, relation = FILTERS[name](BUDGET), NeighbouringRelation.ADD_OR_REMOVE_ONE
    noise = filter_.noise_multiplier(q, n, relation)
    assert filter_.quota({}, PoissonSampledGaussian(q, noise)) >= n
    assert filter_.quota({}, PoissonSampledGaussian(q, 0.99 * noise)) < n


def test_no_filter_mixes_relations() -> None:
    past = {PoissonSampledGaussian(0.01, 1.0, NeighbouringRelation.ZERO_OUT): 1}
    for make in FILTERS.values():
        with pytest.raises(ValueError, match="relation"):
            make(BUDGET).quota(past, EVENT)
