"""Calibration of a whole population: every client's own budget is met, and used."""

import math

import numpy as np
import pytest

from fedprivacy.accounting import UNLIMITED, noise_multiplier, pld, step_quota
from fedprivacy.accounting.targets import noise_multipliers, step_quotas
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian, RandomizedResponse
from tests.accounting.marked import exhaustive

RNG = np.random.default_rng(0)
CLIENTS = 40
RATES, STEPS = 10.0 ** RNG.uniform(-3.0, -0.5, CLIENTS), RNG.integers(1, 5_000, CLIENTS)
EPSILONS, DELTAS = 10.0 ** RNG.uniform(-1.0, 1.5, CLIENTS), 10.0 ** -RNG.uniform(4.0, 8.0, CLIENTS)
PASTS = [{PoissonSampledGaussian(0.02, 1.5): 40 * (n % 3)} for n in range(CLIENTS)]


def test_noise_spends_every_budget_and_no_more() -> None:
    noises = noise_multipliers(EPSILONS, DELTAS, RATES, STEPS)
    for q, noise, n, epsilon, delta in zip(RATES, noises, STEPS, EPSILONS, DELTAS, strict=True):
        spent = pld.epsilon({PoissonSampledGaussian(q, noise): int(n)}, delta)
        assert 0.9985 * epsilon <= spent <= epsilon * (1.0 + 1e-4)


@pytest.mark.exhaustive
def test_what_was_spent_before_counts() -> None:
    noises = noise_multipliers(EPSILONS + 2.0, DELTAS, RATES, STEPS, pasts=PASTS)
    for q, noise, n, epsilon, delta, past in zip(RATES, noises, STEPS, EPSILONS + 2.0, DELTAS, PASTS, strict=True):
        spent = pld.epsilon({**past, PoissonSampledGaussian(q, noise): int(n)}, delta)
        assert 0.998 * epsilon <= spent <= epsilon * (1.0 + 1e-3)


def test_one_client_is_a_batch_of_one() -> None:
    (noise,) = noise_multipliers(2.0, 1e-5, 0.01, 1_000)
    assert noise == pytest.approx(noise_multiplier(PrivacyBudget(2.0, 1e-5), 0.01, 1_000), rel=1e-3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epsilons": [1.0, math.inf]}, "client 1: epsilon is inf; choose a finite"),
        ({"epsilons": -1.0}, "client 0: epsilon is -1"),
        ({"deltas": 0.0}, "client 0: delta is 0"),
        ({"sampling_rates": [0.1, 1.5]}, "client 1: sampling_rate is 1.5"),
        ({"steps": 0}, "client 0: steps is 0"),
        *exhaustive(
            ({"epsilons": 1e-6, "steps": 10**9, "sampling_rates": 1.0}, "noise multiplier of 10000 does not meet")
        ),
        ({"deltas": 0.01, "sampling_rates": 1e-6, "steps": 10}, "asks for no noise"),
        ({"epsilons": 24.86, "deltas": 0.051, "sampling_rates": 1.3855e-5, "steps": 579}, "asks for no noise"),
        ({"epsilons": 8.35, "deltas": 0.0362, "sampling_rates": 1.4517e-4, "steps": 4}, "asks for no noise"),
        ({"steps": 2.7}, r"steps is 2\.7"),
    ],
)
def test_impossible_requests_name_client_and_remedy(setting: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {"epsilons": 1.0, "deltas": 1e-5, "sampling_rates": 0.1, "steps": 10}
    with pytest.raises(ValueError, match=message):
        noise_multipliers(**(usual | setting))  # type: ignore[arg-type]


def test_quotas_are_the_largest_that_fit() -> None:
    events = [PoissonSampledGaussian(q, s) for q, s in zip(RATES[:12], RNG.uniform(0.6, 3.0, 12), strict=True)]
    quotas = step_quotas(events, EPSILONS[:12], DELTAS[:12])
    for event, quota, epsilon, delta in zip(events, quotas, EPSILONS[:12], DELTAS[:12], strict=True):
        assert quota == pytest.approx(step_quota(event, PrivacyBudget(epsilon, delta)), rel=2e-3, abs=1)


def test_quotas_after_a_past() -> None:
    event = PoissonSampledGaussian(0.02, 1.5)
    whole, rest, spent = step_quotas([event] * 3, [3.0, 3.0, 0.1], 1e-5, pasts=[{}, {event: 100}, {event: 5_000}])
    assert rest == whole - 100
    assert spent == 0


def test_unlimited_budgets_have_unlimited_quotas() -> None:
    event = PoissonSampledGaussian(0.02, 1.5)
    assert step_quotas([event, event], [math.inf, 1e-3], 1e-5).tolist() == [UNLIMITED, 0]


def test_quotas_of_extreme_events() -> None:
    free = RandomizedResponse(2, 1.0, NeighbouringRelation.REPLACE_ONE)
    events = [free, PoissonSampledGaussian(0.01, 1e-200), PoissonSampledGaussian(1e-200, 1.0)]
    quotas = step_quotas(events, 5.0, 1e-5)
    assert quotas[1] == 0
    assert min(quotas[0], quotas[2]) >= 10**9
