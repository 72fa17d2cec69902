import math
import re

import numpy as np
import pytest

from fedprivacy.accounting import UNLIMITED, calibration, noise_multiplier, pld, sampling_rate, step_quota
from fedprivacy.accounting.calibration import Calibration, noise_multipliers
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


def drawn(count: int, seed: int) -> list[Calibration]:
    rng = np.random.default_rng(seed)
    rates, steps = 10.0 ** rng.uniform(-3.5, -0.3, count), 10.0 ** rng.uniform(0.0, 3.7, count)
    epsilons, deltas = 10.0 ** rng.uniform(-0.7, 1.2, count), 10.0 ** -rng.uniform(4.0, 9.0, count)
    settings = zip(*(numbers.tolist() for numbers in (epsilons, deltas, rates, steps)), strict=True)
    return [Calibration(PrivacyBudget(epsilon, delta), q, round(n)) for epsilon, delta, q, n in settings]


@pytest.mark.parametrize("count", [8, *exhaustive(100)])
def test_noise_for_many_budgets_is_that_of_each_alone_and_spends_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = noise_multipliers(many := drawn(count, 1))
    solved = [(one, noise) for one, noise in zip(many, found, strict=True) if isinstance(noise, float)]
    assert len(solved) >= 0.8 * count
    for one, noise in solved:
        assert 0.999 <= pld.epsilon(one.history(noise), one.budget.delta) / one.budget.epsilon <= 1.0
    monkeypatch.setattr(calibration, "REMEMBERED", {})
    assert noise_multiplier(*solved[0][0][:-1], past={}) == solved[0][1]
    for one, answer in list(zip(many, found, strict=True))[-20:]:
        if isinstance(answer, float):
            assert noise_multiplier(*one) == answer
        else:
            with pytest.raises(ValueError, match=re.escape(str(answer))):
                noise_multiplier(*one)


def test_noise_after_a_past_spends_what_is_left() -> None:
    budget = PrivacyBudget(2.5, 1e-5)
    noise = noise_multiplier(budget, 0.01, 1_000, past=PAST)
    assert 0.999 * 2.5 <= pld.epsilon({**PAST, PoissonSampledGaussian(0.01, noise): 1_000}, 1e-5) <= 2.5
    assert noise > noise_multiplier(budget, 0.01, 1_000)
    with pytest.raises(ValueError, match="the past alone has spent"):
        noise_multiplier(PrivacyBudget(0.1, 1e-5), 0.01, 10, past=PAST)


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


@pytest.mark.parametrize(
    ("q", "s", "epsilon", "delta"),
    [
        *((0.01, 1.0, 2.0, 1e-5), (1.0, 10.0, 4.0, 1e-5), (0.02, 3.0, 20.0, 1e-8)),
    ],
)
@pytest.mark.parametrize("past", [{}, {PoissonSampledGaussian(0.02, 2.0): 30}], ids=["fresh", "after"])
def test_a_quota_is_exactly_maximal(
    q: float, s: float, epsilon: float, delta: float, past: dict[PoissonSampledGaussian, int]
) -> None:
    event = PoissonSampledGaussian(q, s)
    n = step_quota(event, PrivacyBudget(epsilon, delta), past)
    assert pld.epsilon({**past, event: n}, delta) <= epsilon
    assert pld.epsilon({**past, event: n + 1}, delta) > epsilon


def test_a_quota_is_0_where_all_is_spent_and_has_no_end_where_nothing_limits_it() -> None:
    event, budget = PoissonSampledGaussian(0.01, 1.0), PrivacyBudget(1.0, 1e-5)
    assert step_quota(event, budget, {event: 10_000}) == 0
    assert step_quota(event, budget, {PoissonSampledGaussian(1.0, 0.5): 1}) == 0
    assert step_quota(event, PrivacyBudget(math.inf, 1e-5)) == UNLIMITED
    assert step_quota(PoissonSampledGaussian(1e-5, 10.0), PrivacyBudget(1.0, 1e-6)) == UNLIMITED


def test_the_largest_sampling_rate_spends_the_budget() -> None:
    for past in ({}, PAST):
        rate = sampling_rate(PrivacyBudget(3.0, 1e-5), 1.2, 500, past)
        assert 0.999 * 3.0 <= pld.epsilon({**past, PoissonSampledGaussian(rate, 1.2): 500}, 1e-5) <= 3.0
    assert sampling_rate(PrivacyBudget(3.0, 1e-5), 50.0, 10) == 1.0
    with pytest.raises(ValueError, match="more noise"):
        sampling_rate(PrivacyBudget(1e-4, 1e-12), 0.5, 10**6)
