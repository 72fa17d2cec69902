import math

import pytest

from fedprivacy.accounting import noise_multiplier, pld, sampling_rate
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.accounting.marked import exhaustive

PAST = {PoissonSampledGaussian(0.02, 1.3): 200}
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
    for past in ({}, PAST):
        rate = sampling_rate(PrivacyBudget(3.0, 1e-5), 1.2, 500, past)
        assert 0.999 * 3.0 <= pld.epsilon({**past, PoissonSampledGaussian(rate, 1.2): 500}, 1e-5) <= 3.0
    assert sampling_rate(PrivacyBudget(3.0, 1e-5), 50.0, 10) == 1.0
    with pytest.raises(ValueError, match="more noise"):
        sampling_rate(PrivacyBudget(1e-4, 1e-12), 0.5, 10**6)
